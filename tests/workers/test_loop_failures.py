"""A job whose text cannot be told, beside one that has nothing wrong with it."""

from pathlib import Path

import pytest

from tests.workers.held_jobs import make_held
from tests.workers.loop_world import running_loop
from workers.engine.outputs import StepOutput
from workers.generation import Generation


def test_a_job_whose_tokens_cannot_be_turned_into_text_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = make_held(), make_held()
    push = Generation.push

    def fail(self: Generation, output: StepOutput) -> str | None:
        if self.held is bad:
            raise UnicodeError("no such character")
        return push(self, output)

    monkeypatch.setattr(Generation, "push", fail)
    with running_loop(tmp_path) as world:
        world.start(bad, good)
        assert world.ends.wait(bad, good) == ["failed", "succeeded"]
    assert bad.end is not None and bad.end.error_code == "text_error"
    assert len(good.tokens) == good.claimed.max_tokens
