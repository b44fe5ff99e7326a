"""What a caller of the engine sees: tokens, ends, refusals, aborts and failures."""

import pytest

from tests.workers.engine.fakes import (
    EOS,
    FakeModel,
    expected_samples,
    make_config,
    make_engine,
    make_sequence,
    run_to_end,
    tokens_of,
)
from tests.workers.engine.meddling import MeddlingRunner
from workers.engine.engine import Engine
from workers.engine.errors import InvalidTokens, NeverFits, PromptTooLong
from workers.engine.sequence import Sequence


def make_mixed(num_sequences: int = 6) -> list[Sequence]:
    """Greedy, seeded, restricted and penalised sequences of several lengths; the first keeps nothing special."""
    kinds = (
        {},
        {"temperature": 1.0, "seed": 1},
        {"temperature": 0.8, "seed": -(2**63), "top_k": 5, "top_p": 0.9, "min_p": 0.01},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.5},
        {"temperature": 1.0, "seed": 2**63 - 1, "logprobs": 3},
    )
    return [
        make_sequence(f"s{i}", 3 + 4 * i, arrival=i, max_tokens=6 + i, **kinds[i % len(kinds)])
        for i in range(num_sequences)
    ]


def expected_tokens(sequences: list[Sequence]) -> dict[str, list[int]]:
    config = make_config()
    return {s.id: [sample.token_id for sample in expected_samples(s, config)] for s in sequences}


def run(engine: Engine, sequences: list[Sequence]) -> dict[str, list[int]]:
    for sequence in sequences:
        assert engine.add(sequence) is None
    return tokens_of(run_to_end(engine))


def test_outputs_are_the_same_alone_and_batched() -> None:
    expected = expected_tokens(make_mixed())
    alone = {}
    for sequence in make_mixed():
        alone |= run(make_engine(), [sequence])
    assert alone == expected
    assert run(make_engine(), make_mixed()) == expected


@pytest.mark.parametrize("token_budget", [1, 2, 3, 7, 64])
def test_chunked_prefill_gives_the_same_tokens_and_logprobs(token_budget: int) -> None:
    sequence = make_sequence("a", 23, temperature=1.0, seed=7, logprobs=2)
    expected = expected_samples(sequence, make_config())
    engine = make_engine(token_budget=token_budget, max_num_seqs=1)
    engine.add(sequence)
    outputs = run_to_end(engine)["a"]
    assert [(o.token_id, o.logprobs) for o in outputs] == [(s.token_id, s.logprobs) for s in expected]
    assert all(output.logprobs is not None and len(output.logprobs.top) == 2 for output in outputs)


def test_preempted_sequences_give_the_same_tokens() -> None:
    sequences = make_mixed()
    expected = expected_tokens(sequences)
    assert run(make_engine(num_blocks=11), sequences) == expected
    assert sum(sequence.num_preemptions for sequence in sequences) >= 2


@pytest.mark.parametrize("params", [{}, {"temperature": 1.0, "seed": 3}, {"frequency_penalty": 1.0}])
@pytest.mark.parametrize("num_delivered", range(1, 8))
def test_a_resumed_sequence_continues_as_if_undisturbed(params: dict[str, float], num_delivered: int) -> None:
    undisturbed = run(make_engine(), [make_sequence("a", **params)])["a"]
    resumed = make_sequence("a", output_ids=undisturbed[:num_delivered], **params)
    assert run(make_engine(), [resumed])["a"] == undisturbed[num_delivered:]


def test_a_prefix_that_has_ended_needs_no_step() -> None:
    engine = make_engine()
    assert engine.add(make_sequence("a", output_ids=[1, 2], max_tokens=2)) == "length"
    assert engine.add(make_sequence("b", output_ids=[1, EOS], ignore_eos=False)) == "stop"
    assert not engine.has_work


def test_stop_tokens_end_with_stop_and_are_reported() -> None:
    free = run(make_engine(), [make_sequence("a")])["a"]
    engine = make_engine()
    engine.add(make_sequence("a", stop_token_ids=frozenset({free[3]})))
    outputs = run_to_end(engine)["a"]
    assert [output.token_id for output in outputs] == free[: free.index(free[3]) + 1]
    assert [output.finish_reason for output in outputs][-2:] == [None, "stop"]


def test_eos_ends_a_sequence_unless_it_is_ignored() -> None:
    free = run(make_engine(), [make_sequence("a")])["a"]
    for ignore_eos, num_tokens in ((True, len(free)), (False, 1)):
        engine = make_engine(eos_token_ids=frozenset({free[0]}))
        engine.add(make_sequence("a", ignore_eos=ignore_eos))
        assert len(run_to_end(engine)["a"]) == num_tokens


def test_a_stop_token_at_the_limit_ends_with_stop() -> None:
    free = run(make_engine(), [make_sequence("a", max_tokens=1)])["a"]
    engine = make_engine()
    engine.add(make_sequence("a", max_tokens=1, stop_token_ids=frozenset(free)))
    assert run_to_end(engine)["a"][-1].finish_reason == "stop"


@pytest.mark.parametrize(("num_prompt_tokens", "num_output_tokens"), [(62, 2), (63, 1)])
def test_a_prompt_just_below_the_context_limit_fills_it(num_prompt_tokens: int, num_output_tokens: int) -> None:
    engine = make_engine(max_model_len=64)
    engine.add(make_sequence("a", num_prompt_tokens, max_tokens=10))
    outputs = run_to_end(engine)["a"]
    assert len(outputs) == num_output_tokens
    assert outputs[-1].finish_reason == "length"


@pytest.mark.parametrize("num_prompt_tokens", [64, 65])
def test_a_prompt_at_or_above_the_context_limit_is_refused_with_the_numbers(num_prompt_tokens: int) -> None:
    with pytest.raises(PromptTooLong, match=f"prompt has {num_prompt_tokens} tokens; this model takes 64"):
        make_engine(max_model_len=64).add(make_sequence("a", num_prompt_tokens))


def test_a_sequence_that_can_never_fit_is_refused_with_the_numbers() -> None:
    engine = make_engine(num_blocks=4)  # 16 tokens
    with pytest.raises(NeverFits, match="may reach 17 tokens, which take 5 KV blocks of 4; the cache has 4"):
        engine.add(make_sequence("a", 10, max_tokens=7))
    assert not engine.has_work
    assert len(run(engine, [make_sequence("b", 10, max_tokens=6)])["b"]) == 6


@pytest.mark.parametrize("prompt", [[], [-1], [3, 50]])
def test_token_ids_that_no_model_row_has_are_refused(prompt: list[int]) -> None:
    with pytest.raises(InvalidTokens):
        make_engine().add(make_sequence("a", prompt))


def test_two_sequences_that_each_fill_the_cache_both_end() -> None:
    sequences = [make_sequence(id, 4, max_tokens=12) for id in "ab"]
    expected = expected_tokens(sequences)
    assert run(make_engine(num_blocks=4, watermark_low=0.5, watermark_high=0.5), sequences) == expected


def test_abort_frees_a_running_and_a_waiting_sequence_and_nothing_else() -> None:
    engine = make_engine(max_num_seqs=2)
    sequences = [make_sequence(id, 5, arrival=i) for i, id in enumerate("abc")]
    expected = expected_tokens(sequences)
    for sequence in sequences:
        engine.add(sequence)
    engine.step()
    engine.abort("a")
    engine.abort("c")
    engine.abort("a")
    engine.scheduler.check_invariants()
    assert (engine.num_running, engine.num_waiting, engine.num_free_seats) == (1, 0, 1)
    assert tokens_of(run_to_end(engine)) == {"b": expected["b"][1:]}
    assert engine.num_free_blocks == 64


@pytest.mark.parametrize("sequence_id", ["", "aa", "A", "b"])
def test_abort_of_an_unknown_id_changes_nothing(sequence_id: str) -> None:
    engine = make_engine()
    engine.add(make_sequence("a"))
    engine.abort(sequence_id)
    assert len(run_to_end(engine)["a"]) == 8


def test_a_token_in_flight_at_an_abort_is_dropped_and_its_blocks_are_freed_once() -> None:
    engine = make_engine(max_num_seqs=2)
    runner = MeddlingRunner(engine)
    for i, id in enumerate("abc"):
        engine.add(make_sequence(id, arrival=i))
    runner.aborts = ["a", "a", "c"]  # running twice, waiting once
    assert [output.sequence_id for output in engine.step()] == ["b"]
    engine.scheduler.check_invariants()
    runner.aborts = []
    assert set(run_to_end(engine)) == {"b"}
    assert engine.num_free_blocks == 64


def test_logits_that_are_not_finite_fail_their_sequence_alone() -> None:
    engine = make_engine(model=FakeModel(nan_tokens={48}))
    good = make_sequence("good", [1, 2, 3], temperature=1.0, logprobs=1)
    expected = expected_tokens([good])["good"]
    before = expected.index(48) if 48 in expected else len(expected)
    for sequence in (make_sequence("bad", [48, 2], temperature=1.0, logprobs=1, top_p=0.5), good):
        engine.add(sequence)
    outputs = run_to_end(engine)
    [failed] = outputs["bad"]
    assert (failed.token_id, failed.finish_reason) == (-1, None)
    assert failed.error is not None and "not finite" in failed.error
    assert [output.token_id for output in outputs["good"]][: before + 1] == expected[: before + 1]
    assert engine.num_free_blocks == 64


def test_what_a_failed_row_computed_is_never_shared() -> None:
    engine = make_engine(model=FakeModel(nan_tokens={48}))
    engine.add(make_sequence("bad", [1, 2, 3, 4, 5, 6, 7, 48]))
    [failed] = engine.step()
    assert failed.error is not None
    engine.add(make_sequence("good", [1, 2, 3, 4, 5, 6, 7, 8, 9]))
    assert [output.num_cached_tokens for output in engine.step()] == [0]
    engine.add(make_sequence("next", [1, 2, 3, 4, 5, 6, 7, 8, 9]))
    assert [output.num_cached_tokens for output in engine.step() if output.sequence_id == "next"] == [8]


def test_tenants_do_not_share_what_they_computed() -> None:
    engine = make_engine()
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    for id, salt, num_cached in (("a", b"one", 0), ("b", b"two", 0), ("c", b"one", 8)):
        sequence = make_sequence(id, prompt, max_tokens=1)
        sequence.salt = salt
        engine.add(sequence)
        assert [output.num_cached_tokens for output in engine.step()] == [num_cached]


def test_a_step_without_work_computes_nothing() -> None:
    engine = make_engine()
    assert engine.step() == []
    assert engine.num_steps == 0


def test_health_is_the_age_of_the_last_step_while_work_is_pending() -> None:
    engine = make_engine()
    engine.last_retired_at = 0.0  # idle for ages
    engine.add(make_sequence("a"))
    added_at = engine.last_retired_at
    assert added_at > 0.0
    engine.step()
    assert engine.last_retired_at > added_at
    assert engine.num_steps == 1


def test_an_engine_that_has_work_and_starts_nobody_is_not_taken_for_well() -> None:
    engine = make_engine(num_blocks=4)
    engine.add(make_sequence("a"))
    added_at = engine.last_retired_at
    engine.scheduler.blocks.num_reserved = 4  # promised to nobody: what must not be, and what the age must show
    assert engine.step() == []
    assert (engine.num_running, engine.num_waiting, engine.last_retired_at) == (0, 1, added_at)


def test_a_budget_smaller_than_the_seats_is_refused() -> None:
    with pytest.raises(ValueError, match="token budget of 4 is smaller than the 8 seats"):
        make_config(token_budget=4, max_num_seqs=8)
