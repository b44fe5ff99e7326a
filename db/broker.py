"""The Celery app: control, events, Flower, and the housekeeping queue `tasks`.

Generations travel in Celery's message format through lists that only our own puller reads, see `db/queue.py`; Celery's
stock transport never consumes them.
"""

from datetime import timedelta

from celery import Celery
from kombu import Queue

from db.queue_message import queue_name
from db.settings import TIERS, Settings, get_settings

TASKS_QUEUE = "tasks"
HEARTBEAT_SECONDS = 5
NUM_TASK_THREADS = 8


def make_app(settings: Settings) -> Celery:
    """The app that all Celery processes of one installation share."""
    app = Celery("headrace", broker=settings.broker_url)
    app.conf.update(
        imports=("workers.tasks",),
        task_default_queue=TASKS_QUEUE,
        # What Flower lists while no worker has told it of its queues.
        task_queues=[Queue(name, routing_key=name) for name in (TASKS_QUEUE, *tier_queues(settings))],
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        worker_send_task_events=True,
        # Of generations, `db/queue.py` sends this event itself. Beat's message a second would push them out of Flower.
        task_send_sent_event=False,
        worker_hijack_root_logger=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        # A Redis that refuses commands (its disk is full, it became a replica) is awaited like one that is away.
        broker_channel_error_retry=True,
        # A control queue whose worker is gone leaves nothing in Redis.
        control_queue_expires=300.0,
        control_queue_ttl=300.0,
        event_queue_expires=60.0,
        broker_transport_options={
            "socket_timeout": 10,
            "socket_connect_timeout": 5,
            "socket_keepalive": True,
            "health_check_interval": 5,
        },
        enable_utc=True,
        timezone="UTC",
        beat_schedule=_schedule(),
    )
    return app


def tier_queues(settings: Settings) -> list[str]:
    """The queues of the model that this installation serves, the most urgent tier first."""
    return [queue_name(settings.served_name, tier) for tier in range(len(TIERS))]


def engine_worker_argv(settings: Settings) -> list[str]:
    """The command that runs an engine worker. The stock transport leaves the tier queues to the puller, and the
    housekeeping queue to the tasks worker."""
    argv = _worker_argv("workers.app", f"engine-{settings.served_name}@%h", settings)
    return [*argv, "--exclude-queues", ",".join([TASKS_QUEUE, *tier_queues(settings)])]


def tasks_worker_argv(settings: Settings) -> list[str]:
    """The command that runs a tasks worker."""
    argv = _worker_argv("workers.tasks_app", "tasks@%h", settings)
    return [*argv, "--pool", "threads", "--concurrency", str(NUM_TASK_THREADS), "--queues", TASKS_QUEUE]


def _worker_argv(app_module: str, node_name: str, settings: Settings) -> list[str]:
    return [
        "celery",
        "--app",
        app_module,
        "worker",
        "--hostname",
        node_name,
        "--loglevel",
        settings.log_level,
        "--without-gossip",
        "--without-mingle",
        "--heartbeat-interval",
        str(HEARTBEAT_SECONDS),
    ]


def _schedule() -> dict[str, dict[str, object]]:
    """What beat sends. A message that waited a whole period is dropped: the next one does its work."""
    periods = {
        "deliver_due": timedelta(seconds=1),
        "maintain_partitions": timedelta(hours=1),
        "drop_expired": timedelta(hours=1),
    }
    return {
        task: {"task": task, "schedule": period, "options": {"expires": max(5.0, period.total_seconds())}}
        for task, period in periods.items()
    }


app = make_app(get_settings())
