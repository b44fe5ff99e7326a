"""Which key goes first."""

import pytest

from workers.engine.eviction import LeastFrequentlyUsed, LeastRecentlyUsed

KEYS = [bytes([i]) * 32 for i in range(6)]


def test_least_recently_used_goes_first() -> None:
    policy = LeastRecentlyUsed()
    for key in KEYS[:3]:
        policy.add(key, 1)
    policy.remove(KEYS[0])
    policy.add(KEYS[0], 2)
    assert [policy.pop() for _ in range(4)] == [KEYS[1], KEYS[2], KEYS[0], None]


def test_a_scan_of_keys_used_once_displaces_only_its_like() -> None:
    policy = LeastFrequentlyUsed()
    policy.add(KEYS[0], 3)
    policy.add(KEYS[1], 1)
    assert policy.pop() == KEYS[1]
    policy.add(KEYS[2], 1)
    assert policy.pop() == KEYS[2]


def test_what_was_popular_once_goes_in_time() -> None:
    policy = LeastFrequentlyUsed()
    policy.add(KEYS[0], 3)
    gone = []
    for key in [*KEYS[1:], *KEYS[1:]]:
        policy.add(key, 1)
        gone.append(policy.pop())
        if gone[-1] == KEYS[0]:
            break
    assert 2 <= gone.index(KEYS[0]) <= 4


@pytest.mark.parametrize("policy", [LeastRecentlyUsed(), LeastFrequentlyUsed()])
def test_a_policy_gives_each_key_once(policy: LeastRecentlyUsed | LeastFrequentlyUsed) -> None:
    for key in KEYS:
        policy.add(key, 2)
    policy.remove(KEYS[3])
    assert sorted(policy.pop() or b"" for _ in range(5)) == [key for key in KEYS if key != KEYS[3]]
    assert policy.pop() is None
