"""The step in Celery's consumer that hands pulled jobs to it as ordinary messages. Hub thread only."""

from typing import Any

from celery.worker.consumer import Consumer
from kombu.asynchronous import Hub
from kombu.transport.virtual import Channel, Message

from workers.held import HeldJob
from workers.pool import EnginePool
from workers.tier_control import TierControl


def tiers_read(consumer: Consumer) -> frozenset[int]:
    """The tiers whose lists this worker's puller reads."""
    pool: EnginePool = consumer.pool
    return pool.worker.puller.tiers


class PulledChannel:
    """What a kombu message needs of its channel. Nothing is acknowledged: the row is the claim."""

    no_ack_consumers: set[str] | None = None
    codecs = Channel.codecs
    encode_body = Channel.encode_body
    decode_body = Channel.decode_body

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Claimed rows have left the list already."""

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """A refused message is seen by `ConsumerStep`, which sees that its job did not reach the pool."""


class ConsumerStep(TierControl):
    """Connects the pool's inbox to the consumer's task handler, anew at every connection."""

    label = "Puller"

    def __init__(self, consumer: Consumer, **options: Any) -> None:
        self._channel = PulledChannel()
        super().__init__(consumer, **options)

    def start(self, consumer: Consumer) -> None:
        """Connected: from `register_with_event_loop` on, what is pulled is handed over."""

    def register_with_event_loop(self, consumer: Consumer, hub: Hub) -> None:
        handle = consumer.create_task_handler()
        pool: EnginePool = consumer.pool
        pool.connect(lambda held: handle(self._message(held)))

    def turn_tier(self, consumer: Consumer, tier: int, *, is_on: bool) -> bool:
        """`control add_consumer` and `cancel_consumer` of a tier queue."""
        pool: EnginePool = consumer.pool
        pool.worker.puller.turn(tier, is_on)
        return True

    def _message(self, held: HeldJob) -> Message:
        return Message(held.payload, channel=self._channel)  # type: ignore[arg-type]  # all of it that is used

    def stop(self, consumer: Consumer) -> None:
        """Shutdown or a lost connection: nothing is pulled until the next start."""
        consumer.pool.disconnect()
