"""Tokens of several choices get one order, which no batching changes."""

from hypothesis import given
from hypothesis import strategies as st

from db.stream import Token
from workers.choices import Choices


def token(place: int, choice: int) -> Token:
    return Token(100 * choice + place, f"{choice}.{place} ", None, choice)


def places(tokens: list[Token]) -> list[tuple[int, int]]:
    """(place, choice) of each, read off its id."""
    return [(each.token_id - 100 * each.choice, each.choice) for each in tokens]


def test_a_token_waits_for_those_before_it() -> None:
    choices = Choices(3)
    choices.put(token(0, 1))
    assert choices.take() == []
    choices.put(token(0, 0))
    assert places(choices.take()) == [(0, 0), (0, 1)]
    choices.put(token(1, 0))
    assert choices.take() == []
    choices.put(token(0, 2))
    assert places(choices.take()) == [(0, 2), (1, 0)]


def test_a_choice_that_has_ended_is_not_waited_for() -> None:
    choices = Choices(2)
    for place in range(3):
        choices.put(token(place, 1))
    choices.put(token(0, 0))
    assert places(choices.take()) == [(0, 0), (0, 1)]
    choices.end(0)
    assert places(choices.take()) == [(1, 1), (2, 1)]
    choices.put(token(3, 1))
    assert places(choices.take()) == [(3, 1)]


def test_what_is_held_back_is_released_when_nothing_more_comes() -> None:
    choices = Choices(3)
    choices.put(token(0, 1))
    choices.put(token(1, 1))
    choices.put(token(0, 2))
    choices.end_all()
    assert places(choices.take()) == [(0, 1), (0, 2), (1, 1)]


@given(lengths=st.lists(st.integers(0, 6), min_size=1, max_size=5), data=st.data())
def test_the_order_is_that_of_place_and_choice_whatever_comes_first(lengths: list[int], data: st.DataObject) -> None:
    choices, given_so_far, told = Choices(len(lengths)), [0] * len(lengths), list[Token]()
    left = [choice for choice, length in enumerate(lengths) for _ in range(length + 1)]  # one more: its end
    for choice in data.draw(st.permutations(left)):
        if given_so_far[choice] == lengths[choice]:
            choices.end(choice)
        else:
            choices.put(token(given_so_far[choice], choice))
            given_so_far[choice] += 1
        told += choices.take()
    assert places(told) == sorted((place, choice) for choice, length in enumerate(lengths) for place in range(length))
