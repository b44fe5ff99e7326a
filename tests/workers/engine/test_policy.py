"""Orders of waiting sequences, and who may take whose seat."""

import pytest

from tests.workers.engine.fakes import make_sequence
from workers.engine.policy import make_policy
from workers.engine.sequence import Sequence


def ordered(policy: str, sequences: list[Sequence], now: float) -> str:
    made = make_policy(policy, threshold_seconds=30, boost=0.5)
    return "".join(s.id for s in sorted(sequences, key=lambda s: made.rank(s, now)))


def make_waiting() -> list[Sequence]:
    return [
        make_sequence("a", 50, tier=2, arrival=0.0, max_tokens=5),
        make_sequence("b", 9, tier=1, arrival=1.0, max_tokens=50),
        make_sequence("c", 5, tier=1, arrival=2.0, max_tokens=5),
        make_sequence("d", 40, tier=0, arrival=3.0, max_tokens=5),
    ]


@pytest.mark.parametrize(
    ("policy", "now", "expected"),
    [
        ("fcfs", 4, "abcd"),
        ("aging", 4, "dbca"),
        ("aging", 33, "bdac"),  # levels 0, 0, 0.5 and 0.5: "b" has waited two seconds too long, "a" three
        ("shortest_first", 4, "dcba"),
        ("shortest_first", 36, "abcd"),  # what has aged to the top goes by arrival
    ],
)
def test_order(policy: str, now: float, expected: str) -> None:
    assert ordered(policy, make_waiting(), now) == expected


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="policy is 'lifo'; it must be one of aging, fcfs, shortest_first"):
        make_policy("lifo", threshold_seconds=30, boost=0.5)
