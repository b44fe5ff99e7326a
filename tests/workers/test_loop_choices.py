"""Jobs with several outputs, from the engine's thread to the end that is written: told in one order, resumed, cut."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from db.jobs import End
from db.models import Status
from db.sampling import Sampling
from db.stream import Token
from tests.workers.held_jobs import make_held
from tests.workers.loop_world import PATIENCE_SECONDS, World, running_loop
from workers.held import HeldJob

NUM_SEATS = 4
EOS_AT = {"temperature": 1.0, "stop_token_ids": (3, 11, 19, 27, 35, 43)}  # ends some choices early, by the seed below
ENDLESS = 4000  # tokens


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with running_loop(tmp_path, num_blocks=4096, max_model_len=8192, max_num_seqs=NUM_SEATS) as world:
        yield world


def sampled(n: int, **changes: Any) -> Sampling:
    return Sampling(**{"n": n, "temperature": 1.0, "ignore_eos": True} | changes)


def run(world: World, held: HeldJob) -> End:
    world.start(held)
    world.ends.wait(held)
    assert held.end is not None
    return held.end


def by_choice(tokens: list[Token], n: int) -> list[list[Token]]:
    return [[token for token in tokens if token.choice == choice] for choice in range(n)]


def in_order(tokens: list[Token], n: int) -> list[Token]:
    """The tokens of every choice by their place in it."""
    choices = by_choice(tokens, n)
    longest = max(map(len, choices))
    return [choice[place] for place in range(longest) for choice in choices if place < len(choice)]


def test_choices_are_told_in_turn_and_each_differs_from_the_others(world: World) -> None:
    held = make_held(sampling=sampled(3), max_tokens=6)
    end = run(world, held)
    assert end.choices == [0, 1, 2] * 6
    assert (end.status, end.finish_reason, end.finish_reasons) == ("succeeded", "length", ["length"] * 3)
    texts = {"".join(token.text for token in tokens) for tokens in by_choice(held.tokens, 3)}
    assert len(texts) == 3
    assert end.text == "".join(token.text for token in held.tokens)


def test_the_first_choice_is_the_output_of_the_same_job_with_one(world: World) -> None:
    several, one = make_held(sampling=sampled(3), seed=5), make_held(sampling=sampled(1), seed=5)
    run(world, several)
    end = run(world, one)
    assert by_choice(several.tokens, 3)[0] == one.tokens
    assert (end.choices, end.finish_reasons) == (None, None)


def test_a_choice_that_ends_early_is_skipped_from_then_on(world: World) -> None:
    held = make_held(sampling=sampled(3, **EOS_AT), seed=2, max_tokens=20)
    end = run(world, held)
    lengths = [len(tokens) for tokens in by_choice(held.tokens, 3)]
    assert len(set(lengths)) > 1 and min(lengths) < 20
    assert held.tokens == in_order(held.tokens, 3)
    assert end.finish_reasons == ["stop" if length < 20 else "length" for length in lengths]


@pytest.mark.parametrize("changes", [{}, EOS_AT], ids=["equally long", "ended one by one"])
def test_resumed_after_any_token_every_choice_is_the_same(world: World, changes: dict[str, Any]) -> None:
    options: dict[str, Any] = {"sampling": sampled(3, logprobs=1, **changes), "seed": 2, "max_tokens": 12}
    undisturbed = make_held(**options)
    end = run(world, undisturbed)
    for cut in range(len(undisturbed.tokens) + 1):
        resumed = make_held(**options)
        resumed.tokens = list(undisturbed.tokens[:cut])
        again = run(world, resumed)
        assert (resumed.tokens, again.finish_reasons) == (undisturbed.tokens, end.finish_reasons), f"cut at {cut}"


def test_a_stop_string_ends_its_choice_alone(world: World) -> None:
    plain = make_held(sampling=sampled(3), max_tokens=10)
    run(world, plain)
    texts = ["".join(token.text for token in tokens) for tokens in by_choice(plain.tokens, 3)]
    stop = next(texts[1][i : i + 2] for i in range(2, 9) if all(texts[1][i : i + 2] not in texts[j] for j in (0, 2)))
    stopped = make_held(sampling=sampled(3, stop=(stop,)), max_tokens=10)
    end = run(world, stopped)
    assert end.finish_reasons == ["length", "stop", "length"]
    shown = ["".join(token.text for token in tokens) for tokens in by_choice(stopped.tokens, 3)]
    assert shown == [texts[0], texts[1].partition(stop)[0], texts[2]]


def test_a_cancelled_job_keeps_what_was_written_of_each_choice(world: World) -> None:
    held = make_held(sampling=sampled(3), max_tokens=ENDLESS)
    world.start(held)
    world.ends.wait_tokens(held, 7)
    world.loop.interrupt(held, Status.CANCELLED)
    assert world.ends.wait(held) == ["cancelled"]
    assert held.end is not None
    assert held.end.token_ids == [token.token_id for token in held.tokens]
    assert min(map(len, by_choice(held.tokens, 3))) >= 2
    assert (held.end.finish_reason, held.end.finish_reasons) == (None, [None] * 3)


def test_a_choice_that_is_ahead_when_the_job_is_cancelled_keeps_what_it_has(tmp_path: Path) -> None:
    sizes = {"num_blocks": 4096, "max_model_len": 8192, "max_num_seqs": NUM_SEATS, "token_budget": NUM_SEATS}
    with running_loop(tmp_path, **sizes) as world:
        held = make_held(sampling=sampled(3), max_tokens=ENDLESS)
        held.tokens = [Token(5 + place, "x", None, choice) for place in range(20) for choice in range(3)]
        world.model.closes_after = 10  # steps: of the delivered tokens the first choice's are computed, 4 in each
        world.start(held)
        assert world.model.is_shut.wait(PATIENCE_SECONDS)
        world.loop.interrupt(held, Status.CANCELLED)
        world.model.gate.set()
        assert world.ends.wait(held) == ["cancelled"]
        first, second, _ = by_choice(held.tokens, 3)
        assert len(first) >= len(second) + 2
        assert held.tokens == in_order(held.tokens, 3)


def test_a_job_that_is_short_of_seats_waits_in_the_engine_and_is_known_to(world: World) -> None:
    running = [make_held(max_tokens=ENDLESS) for _ in range(2)]
    group = make_held(sampling=sampled(3), max_tokens=4)
    world.start(*running, group)
    assert world.loop.flush(PATIENCE_SECONDS)
    world.ends.wait_tokens(running[0], len(running[0].tokens) + 2)
    assert world.loop.waiting == (group,)
    world.loop.interrupt(running[0], Status.CANCELLED)
    assert world.ends.wait(group) == ["succeeded"]
    world.loop.interrupt(running[1], None)
    assert world.loop.flush(PATIENCE_SECONDS)


def test_a_job_with_more_choices_than_seats_fails_with_the_numbers(world: World) -> None:
    end = run(world, make_held(sampling=sampled(5)))
    assert (end.status, end.error_code) == ("failed", "too_many_choices")
    assert "5 outputs" in (end.error_message or "") and "4 seats" in (end.error_message or "")


def test_a_search_tells_its_best_outputs_at_its_end(world: World) -> None:
    held = make_held(sampling=sampled(2, num_beams=4, logprobs=0), max_tokens=6)
    end = run(world, held)
    first, second = by_choice(held.tokens, 2)
    assert held.tokens == in_order(held.tokens, 2)
    assert end.finish_reasons == ["length"] * 2
    assert log_probability(first) >= log_probability(second) > float("-inf")
    greedy = make_held(sampling=sampled(1, temperature=0.0, logprobs=0), max_tokens=6)
    run(world, greedy)
    assert log_probability(first) >= log_probability(greedy.tokens)


def log_probability(tokens: list[Token]) -> float:
    return sum(token.logprobs["logprob"] for token in tokens if token.logprobs is not None)


def test_a_search_that_was_cut_off_while_it_told_its_outputs_tells_the_rest(world: World) -> None:
    options: dict[str, Any] = {"sampling": sampled(2, num_beams=3), "max_tokens": 5}
    undisturbed = make_held(**options)
    end = run(world, undisturbed)
    for cut in (0, 1, 5, len(undisturbed.tokens)):
        resumed = make_held(**options)
        resumed.tokens = list(undisturbed.tokens[:cut])
        again = run(world, resumed)
        assert (resumed.tokens, again.finish_reasons) == (undisturbed.tokens, end.finish_reasons), f"cut at {cut}"


def test_a_stop_string_ends_an_output_of_a_search(world: World) -> None:
    plain = make_held(sampling=sampled(2, num_beams=3), max_tokens=8)
    run(world, plain)
    first = "".join(token.text for token in by_choice(plain.tokens, 2)[0])
    stopped = make_held(sampling=sampled(2, num_beams=3, stop=(first[3:6],)), max_tokens=8)
    end = run(world, stopped)
    assert end.status == "succeeded"
    assert end.finish_reasons is not None and end.finish_reasons[0] == "stop"
    assert "".join(token.text for token in by_choice(stopped.tokens, 2)[0]) == first[: first.index(first[3:6])]
