"""Several outputs of one prompt: shared blocks, equal outputs, one fate."""

from functools import partial
from typing import Any

import pytest

from tests.workers.engine.fakes import EOS, expected_samples, logits_of, make_engine, make_sequence, run_to_end
from workers.engine.beam import BeamSearch
from workers.engine.engine import Engine
from workers.engine.errors import NeverFits, TooManyChoices
from workers.engine.group import SequenceGroup, choice_seed
from workers.engine.outputs import StepOutput

Outputs = dict[int, list[int]]


def make_group(id: str = "g", prompt: int = 10, n: int = 3, *, delivered: dict[int, int] | None = None, **params: Any):
    """Choices of one seeded prompt, some with output tokens of an earlier run."""
    options = {"temperature": 1.0, "seed": 7, "max_tokens": 8} | params
    sequences = []
    for choice in range(n):
        sequence = make_sequence(
            f"{id}/{choice}", list(range(1, 1 + prompt)), **options | {"seed": choice_seed(7, choice)}
        )
        sequence.choice = choice
        done = expected_samples(sequence, make_engine().config)[: (delivered or {}).get(choice, 0)]
        sequence.token_ids.extend(sample.token_id for sample in done)
        sequences.append(sequence)
    return SequenceGroup(id, sequences)


def expected_of(group: SequenceGroup) -> Outputs:
    config = make_engine().config
    return {s.choice: [sample.token_id for sample in expected_samples(s, config)] for s in group.living}


def by_choice(outputs: list[StepOutput]) -> Outputs:
    tokens: Outputs = {}
    for output in outputs:
        tokens.setdefault(output.choice, []).append(output.token_id)
    return tokens


def run(engine: Engine, group: SequenceGroup) -> Outputs:
    assert engine.add_group(group) == {}
    return by_choice(run_to_end(engine)[group.id])


@pytest.mark.parametrize("num_prompt_tokens", [1, 7, 8, 10])
@pytest.mark.parametrize("token_budget", [8, 64])
def test_each_choice_is_what_it_would_be_alone(num_prompt_tokens: int, token_budget: int) -> None:
    group = make_group(prompt=num_prompt_tokens)
    expected = expected_of(group)
    engine = make_engine(token_budget=token_budget)
    assert run(engine, group) == expected
    assert len({tuple(each) for each in expected.values()}) == 3
    assert engine.num_free_blocks == 64 and engine.num_free_seats == 8


def test_the_first_choice_is_what_a_plain_job_gives() -> None:
    assert choice_seed(-5, 0) == -5
    assert len({choice_seed(-5, choice) for choice in range(100)}) == 100
    assert all(-(2**63) <= choice_seed(2**63 - 1, choice) < 2**63 for choice in range(100))


def test_choices_share_the_blocks_of_their_prompt_and_copy_only_the_partial_one() -> None:
    engine = make_engine(block_size=4)
    engine.add_group(make_group(prompt=14, n=4))
    engine.step()
    tables = [sequence.block_table for sequence in engine.scheduler.running]
    assert all(table == tables[0] for table in tables)  # nobody has written yet
    engine.step()
    assert all(table[:3] == tables[0][:3] for table in tables)
    assert len({table[3] for table in tables}) == 4
    assert engine.num_free_blocks == 64 - 3 - 4
    engine.scheduler.check_invariants()


def test_a_group_is_admitted_with_all_its_seats_or_not_at_all() -> None:
    engine = make_engine(max_num_seqs=4)
    engine.add(make_sequence("a", arrival=0, max_tokens=3))
    engine.add(make_sequence("b", arrival=1, max_tokens=9))
    engine.step()
    group = make_group(n=3)
    expected = expected_of(group)
    engine.add_group(group)
    assert [output.sequence_id for output in engine.step()] == ["a", "b"]
    outputs = run_to_end(engine)
    assert by_choice(outputs["g"]) == expected


def test_an_abort_ends_all_choices_and_frees_everything() -> None:
    for num_steps in range(4):
        engine = make_engine(token_budget=8)
        engine.add_group(make_group(prompt=10))
        for _ in range(num_steps):
            engine.step()
        engine.abort("g")
        engine.scheduler.check_invariants()
        assert not engine.has_work and engine.num_free_blocks == 64 and engine.num_free_seats == 8


def test_one_choice_may_end_while_the_others_go_on() -> None:
    engine = make_engine()
    group = make_group()
    expected = expected_of(group)
    engine.add_group(group)
    first = by_choice(engine.step())
    engine.abort_choice("g", 0)  # the one that computed the prompt
    engine.abort_choice("g", 0)
    engine.abort_choice("g", 9)
    rest = by_choice(run_to_end(engine)["g"])
    assert rest.keys() == {1, 2}
    assert {choice: first[choice] + rest[choice] for choice in rest} == {1: expected[1], 2: expected[2]}
    assert engine.num_free_blocks == 64


def test_a_group_gives_way_as_one_and_goes_on_where_it_was() -> None:
    engine = make_engine(num_blocks=10, token_budget=32)
    group = make_group(prompt=6, n=2, max_tokens=10)
    expected = expected_of(group)
    first = make_sequence("first", 4, tier=0, arrival=-1.0, max_tokens=24)
    wanted = [sample.token_id for sample in expected_samples(first, engine.config)]
    engine.add(first)
    engine.add_group(group)
    outputs = run_to_end(engine)
    assert engine.scheduler.preemption.num > 0
    assert by_choice(outputs["g"]) == expected
    assert [output.token_id for output in outputs["first"]] == wanted


@pytest.mark.parametrize("delivered", [{0: 3, 1: 2, 2: 2}, {0: 1}, {1: 8, 0: 8, 2: 7}, {0: 8}])
def test_a_group_resumes_from_what_each_choice_had_delivered(delivered: dict[int, int]) -> None:
    group = make_group(delivered=delivered)
    expected = expected_of(group)
    engine = make_engine(token_budget=8)
    ended = engine.add_group(group)
    assert ended == {choice: "length" for choice, count in delivered.items() if count == 8}
    assert by_choice(run_to_end(engine)["g"]) == {choice: each for choice, each in expected.items() if each}


def test_a_failing_choice_fails_its_group_alone() -> None:
    engine = make_engine()
    engine.add(make_sequence("other"))
    engine.add_group(make_group())
    engine.step()
    guilty = next(s for s in engine.scheduler.running if s.choice == 1)
    inner = engine.runner

    class Failing:
        def run(self, batch):
            inner.mover.run(batch.moves)
            if guilty in batch.sequences:
                raise RuntimeError("bad row")
            return inner.run(batch)

    engine.runner = Failing()
    outputs = run_to_end(engine)
    assert [output.error for output in outputs["g"] if output.error] == ["RuntimeError: bad row"]
    assert outputs["other"][-1].finish_reason == "length"
    assert engine.num_free_blocks == 64


def test_more_choices_than_seats_or_blocks_are_refused_with_the_numbers() -> None:
    with pytest.raises(TooManyChoices, match="9 outputs of one prompt are asked for; this worker has 8 seats"):
        make_engine().add_group(make_group(n=9))
    # 2 shared blocks and 3 times 3: the partial one and two more.
    with pytest.raises(NeverFits, match="take 11 KV blocks of 4; the cache has 10"):
        make_engine(num_blocks=10).add_group(make_group(prompt=10, n=3, max_tokens=10))


def make_search(num_beams: int = 3, n: int = 2, prompt: int = 10, **params: Any) -> SequenceGroup:
    options = {"max_tokens": 8, "n": n, "num_beams": num_beams} | params
    return SequenceGroup(
        "b", [make_sequence(f"b/{i}", list(range(1, 1 + prompt)), **options) for i in range(num_beams)]
    )


def searched_alone(group: SequenceGroup, engine: Engine) -> list[tuple[list[int], str]]:
    """What the search finds when each beam's logits are computed from its whole context."""
    params, prompt = group.leader.params, group.leader.prompt_ids
    search = BeamSearch(
        params.num_beams, max_tokens=params.max_tokens, stop_token_ids=params.stop_ids(frozenset({EOS}))
    )
    beams: list[list[int]] = [[]]
    while not search.is_done:
        scores = [logits_of(prompt + beam).log_softmax(dim=-1) for beam in beams]
        rows = [
            list(zip(*(x.tolist() for x in reversed(row.topk(search.num_candidates))), strict=True)) for row in scores
        ]
        beams = [[*beams[step.parent], step.token_id] for step in search.advance(rows)]
    return [(found.token_ids, found.finish_reason) for found in search.best(params.n)]


@pytest.mark.parametrize("seed", range(6))
def test_a_beam_search_finds_in_the_engine_what_it_finds_alone(seed: int) -> None:
    engine = make_engine(num_blocks=40)
    group = make_search(num_beams=2 + seed % 3, prompt=3 + seed, ignore_eos=seed % 2 == 0)
    expected = searched_alone(group, engine)
    engine.add(make_sequence("other", 6, max_tokens=20))
    engine.add_group(group)
    outputs = run_to_end(engine)
    for choice, (token_ids, reason) in enumerate(expected):
        found = [output for output in outputs["b"] if output.choice == choice]
        assert [output.token_id for output in found] == token_ids
        assert [output.finish_reason for output in found] == [None] * (len(found) - 1) + [reason]
    assert len(outputs["other"]) == 20
    assert engine.num_free_blocks == 40 and engine.num_free_seats == 8


def test_beams_share_their_prefix_and_give_back_what_they_leave() -> None:
    engine = make_engine()
    engine.add_group(make_search(num_beams=4, prompt=12, max_tokens=20))
    most = 0
    while engine.has_work:
        engine.step()
        engine.scheduler.check_invariants()
        most = max(most, 64 - engine.num_free_blocks)
    assert most < 4 * 8  # what four sequences of 32 tokens would take by themselves
    assert engine.num_free_blocks == 64


def test_a_beam_search_gives_way_and_goes_on() -> None:
    engine = make_engine(num_blocks=10, token_budget=32)
    group = make_search(num_beams=3, prompt=6, max_tokens=8)
    expected = searched_alone(group, engine)
    engine.add(make_sequence("first", 20, tier=0, arrival=-1.0, max_tokens=16))
    engine.add_group(group)
    outputs = run_to_end(engine)
    assert engine.scheduler.preemption.num > 0
    assert [output.token_id for output in outputs["b"] if output.choice == 0] == expected[0][0]


@pytest.mark.parametrize("is_search", [False, True])
def test_prompt_logprobs_come_once_with_the_first_token(is_search: bool) -> None:
    make = partial(make_search, num_beams=2) if is_search else make_group
    engine = make_engine(token_budget=8)
    engine.add_group(make(prompt=10, n=2, prompt_logprobs=1, max_tokens=4))
    [outputs] = run_to_end(engine).values()
    told = [output.prompt_logprobs for output in outputs if output.prompt_logprobs is not None]
    assert [len(each) for each in told] == [9]
    assert told[0][0].logprob == pytest.approx(float(logits_of([1]).log_softmax(-1)[2]))
