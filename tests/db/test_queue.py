"""The tier lists: order, aging, shares, blocks, and repair at the front."""

from collections import Counter
from typing import Any
from uuid import UUID

import redis
import redis.asyncio

from db import queue
from db.queue import Popped, Ready, Waiter
from db.queue_message import encode

NOW = 1_000_000.0


def ready(number: int, *, wait: float = 0.0, tier: int = 1, blocks: int = 1, model: str = "m") -> Ready:
    return Ready(UUID(int=number), model, tier, NOW - wait, blocks)


def pop(
    client: redis.Redis,
    *,
    seats: int = 1,
    blocks: int = 1000,
    live_workers: int = 1,
    pops: int = 0,
    policy: str = "aging",
    **options: Any,
) -> Popped:
    return queue.pop(
        client,
        model="m",
        now=NOW,
        policy=policy,
        threshold=30.0,
        boost=0.5,
        seats=seats,
        blocks=blocks,
        live_workers=live_workers,
        pops=pops,
        **options,
    )


def popped_ids(popped: Popped) -> list[int]:
    return [message.job_id.int for message in popped.messages]


def test_a_tier_is_first_in_first_out_and_messages_say_what_was_pushed(redis_client: redis.Redis) -> None:
    queue.push(redis_client, [ready(1, wait=3), ready(2, wait=2, blocks=7)])
    queue.push(redis_client, [ready(3, wait=1)])
    popped = pop(redis_client, seats=8)
    assert popped_ids(popped) == [1, 2, 3] and popped.depth == 3
    assert (popped.messages[1].ready_at, popped.messages[1].num_blocks, popped.messages[1].tier) == (NOW - 2, 7, 1)
    assert popped.messages[0].raw.startswith(b'{"body"') and popped.messages[0].fits
    assert popped_ids(pop(redis_client)) == []


def test_what_a_waiter_needs_is_left_to_it_by_all_that_goes_behind_it(redis_client: redis.Redis) -> None:
    waiter = Waiter(tier=1, ready_at=NOW - 5, num_blocks=8)
    queue.push(redis_client, [ready(1, tier=0, blocks=6), ready(2, blocks=3)])
    assert popped_ids(pop(redis_client, seats=2, blocks=10, waiters=[waiter])) == [1]
    assert popped_ids(pop(redis_client, seats=2, blocks=10, waiters=[waiter])) == []
    assert popped_ids(pop(redis_client, seats=2, blocks=11, waiters=[waiter])) == [2]


def test_an_old_job_that_does_not_fit_beside_a_waiter_does_not_hold_up_a_better_tier(
    redis_client: redis.Redis,
) -> None:
    waiter = Waiter(tier=2, ready_at=NOW - 500, num_blocks=50)
    queue.push(redis_client, [ready(1, wait=400, tier=2, blocks=60), ready(2, tier=0, blocks=1)])
    assert popped_ids(pop(redis_client, blocks=40, waiters=[waiter], pops=3)) == []  # 2 is behind the waiter, too
    assert popped_ids(pop(redis_client, blocks=51, waiters=[waiter], pops=3)) == [2]


def test_only_the_tiers_asked_for_are_read(redis_client: redis.Redis) -> None:
    queue.push(redis_client, [ready(1, tier=0), ready(2, tier=1), ready(3, tier=2)])
    popped = pop(redis_client, seats=8, tiers={1})
    assert (popped_ids(popped), popped.depth) == ([2], 1)


def test_better_tier_goes_first_while_nobody_has_waited_long(redis_client: redis.Redis) -> None:
    queue.push(redis_client, [ready(1, wait=20, tier=2), ready(2, wait=10, tier=1), ready(3, wait=0, tier=0)])
    assert popped_ids(pop(redis_client, seats=3)) == [3, 2, 1]


def test_low_job_competes_as_high_after_34_seconds(redis_client: redis.Redis) -> None:
    queue.push(redis_client, [ready(1, wait=33.9, tier=2), ready(2, wait=5, tier=0)])
    assert popped_ids(pop(redis_client, pops=3)) == [2]
    redis_client.flushall()
    queue.push(redis_client, [ready(1, wait=34, tier=2), ready(2, wait=5, tier=0)])
    assert popped_ids(pop(redis_client, pops=3)) == [1]


def test_aged_backlog_gets_every_fourth_pop_and_high_jobs_the_others(redis_client: redis.Redis) -> None:
    queue.push(redis_client, [ready(number, wait=100, tier=2) for number in range(1, 101)])
    queue.push(redis_client, [ready(number, wait=1, tier=0) for number in range(101, 201)])
    first = pop(redis_client, seats=40)
    assert Counter(message.tier for message in first.messages) == {0: 30, 2: 10}
    second = [pop(redis_client, pops=40 + number).messages[0].tier for number in range(8)]
    assert second == [0, 0, 0, 2, 0, 0, 0, 2]


def test_aged_backlog_alone_is_not_slowed_down(redis_client: redis.Redis) -> None:
    queue.push(redis_client, [ready(number, wait=100, tier=2) for number in range(1, 9)])
    assert popped_ids(pop(redis_client, seats=8)) == list(range(1, 9))


def test_fcfs_knows_no_tiers(redis_client: redis.Redis) -> None:
    queue.push(redis_client, [ready(1, wait=1, tier=0), ready(2, wait=2, tier=2), ready(3, wait=3, tier=1)])
    assert popped_ids(pop(redis_client, seats=3, policy="fcfs")) == [3, 2, 1]


def test_worker_takes_its_share_and_leaves_the_others_theirs(redis_client: redis.Redis) -> None:
    queue.push(redis_client, [ready(number) for number in range(1, 8)])
    assert popped_ids(pop(redis_client, seats=32, live_workers=3)) == [1, 2, 3]
    assert popped_ids(pop(redis_client, seats=1, live_workers=3)) == [4]
    assert pop(redis_client, seats=0).depth == 3


def test_pop_stops_before_the_message_that_does_not_fit(redis_client: redis.Redis) -> None:
    queue.push(redis_client, [ready(1, blocks=4), ready(2, blocks=5), ready(3, blocks=1)])
    assert popped_ids(pop(redis_client, seats=3, blocks=8)) == [1]
    popped = pop(redis_client, seats=3, blocks=4)
    assert popped_ids(popped) == [2] and not popped.messages[0].fits
    assert popped_ids(pop(redis_client, seats=3, blocks=1)) == [3]


def test_message_of_another_client_is_dropped_when_it_names_no_job(redis_client: redis.Redis) -> None:
    redis_client.lpush("generate.m.normal", b"nonsense")
    queue.push(redis_client, [ready(1)])
    assert popped_ids(pop(redis_client, seats=2)) == [1]
    assert queue.depths(redis_client, "m") == {0: 0, 1: 0, 2: 0}


def test_heads_are_the_oldest_of_each_tier(redis_client: redis.Redis) -> None:
    queue.push(redis_client, [ready(1, wait=9), ready(2, wait=3), ready(3, wait=5, tier=2)])
    assert queue.heads(redis_client, "m") == {0: None, 1: NOW - 9, 2: NOW - 5}
    assert queue.depths(redis_client, "m") == {0: 0, 1: 2, 2: 1}


def test_models_do_not_share_lists(redis_client: redis.Redis) -> None:
    queue.push(redis_client, [ready(1, model="other")])
    assert popped_ids(pop(redis_client)) == []
    assert queue.depths(redis_client, "other")[1] == 1


def test_repaired_messages_go_first_the_oldest_of_them_before_all(redis_client: redis.Redis) -> None:
    queue.push(redis_client, [ready(4, wait=1), ready(5, wait=0)])
    pushed = queue.push_front(redis_client, [ready(2, wait=8), ready(1, wait=9), ready(3, wait=7)])
    assert pushed == 3
    assert popped_ids(pop(redis_client, seats=9)) == [1, 2, 3, 4, 5]


def test_handed_back_message_goes_behind_whatever_is_older(redis_client: redis.Redis) -> None:
    queue.push(redis_client, [ready(1, wait=9), ready(2, wait=8), ready(4, wait=6), ready(5, wait=5)])
    assert queue.push_front(redis_client, [ready(3, wait=7), ready(0, wait=10)]) == 2
    assert popped_ids(pop(redis_client, seats=9)) == [0, 1, 2, 3, 4, 5]


def test_repair_does_not_double_a_message_that_was_published_meanwhile(redis_client: redis.Redis) -> None:
    queue.push(redis_client, [ready(2, wait=5)])
    assert queue.push_front(redis_client, [ready(2, wait=5), ready(1, wait=6)]) == 1
    assert popped_ids(pop(redis_client, seats=9)) == [1, 2]


def test_repair_of_many_pages_in_several_tiers_leaves_no_key_behind(redis_client: redis.Redis) -> None:
    many = [ready(number, wait=5000 - number, tier=number % 2) for number in range(1, 2501)]
    assert queue.push_front(redis_client, many) == 2500
    raw = redis_client.lrange("generate.m.high", 0, -1)
    assert [queue._stamp(message)[0] for message in reversed(raw)] == [each.ready_at for each in many if each.tier == 0]
    assert set(redis_client.keys()) == {b"generate.m.high", b"generate.m.normal"}


async def test_cancelled_jobs_message_is_removed_and_no_other(
    redis_client: redis.Redis, async_redis: redis.asyncio.Redis
) -> None:
    queue.push(redis_client, [ready(1), ready(2, wait=1 / 3), ready(3)])
    await queue.remove_async(async_redis, ready(2, wait=1 / 3))
    await queue.remove_async(async_redis, ready(4))
    assert popped_ids(pop(redis_client, seats=9)) == [1, 3]


def test_push_wakes_the_models_workers(redis_client: redis.Redis) -> None:
    subscription = redis_client.pubsub(ignore_subscribe_messages=True)
    subscription.subscribe(queue.wake_channel("m"))
    assert subscription.get_message(timeout=5) is None
    queue.push(redis_client, [ready(1)])
    assert subscription.get_message(timeout=5)["channel"] == b"wake.m"
    queue.push(redis_client, [])
    assert encode(ready(1)).endswith(b'"num_blocks": 1}}')
