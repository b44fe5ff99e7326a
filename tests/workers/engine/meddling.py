"""What comes in while a step is computed: aborts, and failures."""

from workers.engine.batch import Batch
from workers.engine.engine import Engine
from workers.engine.outputs import Computed


class MeddlingRunner:
    """Runs the engine's own runner, and `before` it something that comes in while the step is in flight."""

    def __init__(self, engine: Engine) -> None:
        self.inner = engine.runner
        self.aborts: list[str] = []
        self.cause: Exception | None = None
        self.culprits: set[str] | None = None  # whom it fails for; None: for everybody
        self.num_failures = 1000  # it fails so often
        self.engine = engine
        engine.runner = self

    def run(self, batch: Batch) -> Computed:
        for sequence_id in self.aborts:
            self.engine.abort(sequence_id)
        is_guilty = self.culprits is None or self.culprits & {sequence.id for sequence in batch.sequences}
        if self.cause is not None and is_guilty and self.num_failures:
            self.num_failures -= 1
            raise self.cause
        return self.inner.run(batch)
