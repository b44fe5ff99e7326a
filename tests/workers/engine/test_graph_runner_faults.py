"""Steps on a device that go wrong, and sequences that leave in the middle of one."""

from typing import Any

import torch

from tests.workers.engine.fakes import FakeModel, make_sequence, run_to_end
from tests.workers.engine.graph_world import OVERLAP, expected_tokens, make_engine, runner_of, tokens


@OVERLAP
def test_a_row_that_is_not_finite_fails_alone_and_its_neighbours_go_on(is_overlapping: bool) -> None:
    engine = make_engine(model=FakeModel(nan_tokens={47}), is_overlapping=is_overlapping)
    good = [make_sequence(f"good{i}", [1 + i, 2], max_tokens=6, temperature=i * 0.8) for i in range(2)]
    expected = expected_tokens(engine, good)
    assert not any(47 in ids for ids in expected.values())
    for sequence in [*good, make_sequence("bad", [47, 1]), make_sequence("drawn", [1, 47], temperature=1.0)]:
        engine.add(sequence)
    outputs = run_to_end(engine)
    engine.close()
    for id in ("bad", "drawn"):
        [failed] = outputs[id]
        assert failed.error == "the model produced logits that are not finite"
    assert {id: [output.token_id for output in outputs[id]] for id in expected} == expected


class Failing(FakeModel):
    """Cannot compute a step with the marked token, when all that the step needs has been sent to the device."""

    marked = -1

    def forward(self, input_ids: torch.Tensor, *args: Any) -> torch.Tensor:
        if self.marked in input_ids.tolist():
            raise RuntimeError("a marked token")
        return super().forward(input_ids, *args)


@OVERLAP
def test_a_step_that_fails_is_computed_again_without_its_culprit(is_overlapping: bool) -> None:
    model = Failing()
    engine = make_engine(model=model, is_overlapping=is_overlapping)
    good = [make_sequence(f"good{i}", [1 + i, 2], max_tokens=20) for i in range(3)]
    expected = expected_tokens(engine, good)
    model.marked = min(set(range(4, 49)).difference(*expected.values()))
    for sequence in good:
        engine.add(sequence)
    outputs = [output for _ in range(5) for output in engine.step()]
    engine.add(make_sequence("bad", [3, model.marked, 1]))
    outputs += [output for each in run_to_end(engine).values() for output in each]
    engine.close()
    assert [output.error for output in outputs if output.error] == ["RuntimeError: a marked token"]
    assert {id: [output.token_id for output in outputs if output.sequence_id == id] for id in expected} == expected


def test_block_tables_are_sent_again_when_a_step_failed_before_they_were_there() -> None:
    engine = make_engine()
    sequence = make_sequence("a", 9, max_tokens=20)
    expected = expected_tokens(engine, [sequence])
    runner, put = runner_of(engine), runner_of(engine)._uploads.put
    engine.add(sequence)
    engine.step()

    def lose(*lists: Any, **options: Any) -> list[torch.Tensor]:
        runner._uploads.put = put  # type: ignore[method-assign]
        raise RuntimeError("nothing was sent")

    sequences = [make_sequence(f"s{i}", 9, max_tokens=20) for i in range(2)]
    expected |= expected_tokens(engine, sequences)
    for each in sequences:
        engine.add(each)
    runner._uploads.put = lose  # type: ignore[method-assign]
    outputs = run_to_end(engine)
    found = {id: [output.token_id for output in each] for id, each in outputs.items()}
    assert found == expected | {"a": expected["a"][1:]}


def test_aborted_sequences_leave_their_slots_to_others() -> None:
    engine = make_engine(is_overlapping=True, max_num_seqs=2)
    for i in range(6):
        engine.add(make_sequence(f"gone{i}", 9, max_tokens=30))
        engine.step()
        engine.abort(f"gone{i}")
    sequence = make_sequence("last", 9, max_tokens=20)
    expected = expected_tokens(engine, [sequence])
    assert tokens(engine, [sequence]) == expected
