"""Runs a model on a device that works beside the host: a step is launched, and the next before its tokens are here.

What the device keeps between steps: block tables and last tokens by slot, and graphs of steps of one token a row.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from kernels import AttentionBatch
from workers.engine.accelerator import Accelerator, Mark
from workers.engine.batch import Batch
from workers.engine.config import EngineConfig
from workers.engine.decode_graphs import DecodeGraphs, DecodeRows, Padding
from workers.engine.device_sampler import Choice, make_choice, samples_of
from workers.engine.mover import Files, Mover
from workers.engine.outputs import Computed
from workers.engine.pooling import pool
from workers.engine.runner import Model, make_cache, prompt_logprobs_of
from workers.engine.sampler import sample
from workers.engine.slots import Slots
from workers.engine.staging import Downloads, Uploads


@dataclass
class LaunchedStep:
    """A step that the device has been told to compute."""

    _read: Callable[[], Computed]
    _started: Mark
    _ended: Mark
    _computed: Computed | None = field(default=None, init=False)

    def wait(self) -> Computed:
        """What it computed, once it has; however often that is asked."""
        if self._computed is None:
            self._computed = self._read()
        return self._computed

    @property
    def seconds(self) -> float:
        """From when the device could begin until its tokens were chosen. After `wait`."""
        self._ended.wait()
        return self._ended.seconds_since(self._started)


@dataclass(frozen=True)
class Forwarded:
    """What there is of a step before its tokens are chosen. All but the last is on the device."""

    logits: torch.Tensor
    facts: torch.Tensor  # of the draws
    slots: torch.Tensor  # of the sequences that get a token
    pooled: list[list[float]] = field(default_factory=list)


class GraphRunner:
    """Runs one model on one device. Everything here is called on the engine's thread."""

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        accelerator: Accelerator,
        dtype: torch.dtype,
        *,
        disk: Files | None = None,
        has_graphs: bool = True,
    ) -> None:
        """`has_graphs` False: the model's launches depend on what it computes, so they are never captured."""
        self.model = model
        self._accelerator = accelerator
        device, max_blocks = accelerator.device, -(-config.max_model_len // config.block_size)
        num_blocks = config.num_blocks + 1  # the last one is nobody's: rows that only pad write there
        self.kv_cache = make_cache(model, num_blocks, config.block_size, dtype=dtype, device=device)
        self.mover = Mover(self.kv_cache, num_host_slots=config.host_blocks, disk=disk)
        self._eos_token_ids = config.eos_token_ids
        self._slots = Slots(config.max_num_seqs, max_blocks)
        shape = (config.max_num_seqs + 1, max_blocks)
        self._block_tables = torch.full(shape, config.num_blocks, dtype=torch.int32, device=device)
        self._last_ids = torch.zeros(config.max_num_seqs + 1, dtype=torch.int64, device=device)  # by slot
        self._uploads = Uploads(accelerator)
        self._downloads = Downloads(accelerator, config.max_num_seqs)
        self.graphs: DecodeGraphs | None = None
        if has_graphs:
            padding = Padding(config.num_blocks, config.block_size, self._slots.dummy)
            with torch.inference_mode():
                self.graphs = DecodeGraphs(accelerator, self._decode, padding, config.max_num_seqs)

    def run(self, batch: Batch) -> Computed:
        """One sample per sequence of `batch.sampled`; K and V of all its tokens are in the cache afterwards."""
        return self.launch(batch).wait()

    @torch.inference_mode()
    def launch(self, batch: Batch) -> LaunchedStep:
        """Queue all that computes the batch. It waits for the device only where the host must see what it computed."""
        started = self._accelerator.mark()
        try:
            self.mover.run(batch.moves)
            choice = make_choice(batch)
            forwarded = self._compute(batch, choice)
            read = self._choose_here(forwarded, batch) if choice is None else self._choose_there(forwarded, choice)
        except BaseException:
            self._slots.forget()  # what was to be written to the tables may not have been
            raise
        return LaunchedStep(read, started, self._accelerator.mark())

    def _compute(self, batch: Batch, choice: Choice | None) -> Forwarded:
        """Copy what the step needs to the device, in one go, and have it computed."""
        slots = self._slots.take(batch.sequences)
        changes = self._slots.update(batch, slots)
        sampled_slots = [self._slots.find(sequence) for sequence in batch.sampled]
        facts = [] if choice is None else choice.facts
        token_ids = _token_ids(batch, slots)
        rows = DecodeRows(token_ids, batch.positions, batch.slot_mapping, batch.context_lens, slots)
        graphs = self.graphs if _is_decode(batch) else None
        if graphs is None or not graphs.takes(len(batch)):
            graphs, lists = None, (*rows.lists(), batch.cu_seqlens_q, _logits_rows(batch))
        else:
            lists = graphs.pad(rows)
        *inputs, places, block_ids, on_device, reals = self._uploads.put(*lists, *changes, sampled_slots, reals=facts)
        if len(places):
            self._block_tables.view(-1).index_copy_(0, places, block_ids.int())
        if graphs is None:
            logits, states = self._forward(inputs, max(map(len, batch.block_tables)))
            return Forwarded(logits, reals, on_device, pool(states, batch.pooled_rows))
        return Forwarded(graphs.run(inputs)[: len(batch)], reals, on_device)

    def _decode(self, rows: torch.Tensor) -> torch.Tensor:
        """What is captured: logits [size, vocab_size] of rows int64 [5, size]. Depends on the size alone."""
        size = rows.shape[1]
        each = torch.arange(size + 1, device=rows.device)
        return self._forward([*rows.unbind(0), each, each[:size]], self._block_tables.shape[1])[0]

    def _forward(self, inputs: list[torch.Tensor], max_blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(logits, hidden states), as `Model.forward_with_states` gives them."""
        token_ids, positions, slot_mapping, context_lens, slots, cu_seqlens_q, logits_rows = inputs
        sampled = self._last_ids[(-1 - token_ids).clamp_(min=0)].clamp_(min=0)  # a failed row's successor is not used
        attention = AttentionBatch(
            slot_mapping=slot_mapping,
            block_tables=self._block_tables[:, :max_blocks].index_select(0, slots),
            cu_seqlens_q=cu_seqlens_q.int(),
            context_lens=context_lens.int(),
        )
        token_ids = torch.where(token_ids < 0, sampled, token_ids)
        return self.model.forward_with_states(token_ids, positions, self.kv_cache, attention, logits_rows)

    def _choose_there(self, forwarded: Forwarded, choice: Choice) -> Callable[[], Computed]:
        """The next step finds the tokens on the device; the host reads them when it gets to it."""
        token_ids = choice.token_ids(forwarded.logits, forwarded.facts)
        self._last_ids.index_copy_(0, forwarded.slots, token_ids)
        download = self._downloads.start(token_ids)
        return lambda: Computed(samples_of(download.read()), pooled=forwarded.pooled)

    def _choose_here(self, forwarded: Forwarded, batch: Batch) -> Callable[[], Computed]:
        num_sampled, logits = len(batch.sampled), forwarded.logits
        samples = sample(logits[:num_sampled], batch.sampled, batch.output_indices, self._eos_token_ids)
        computed = Computed(samples, prompt_logprobs_of(logits[num_sampled:], batch), forwarded.pooled)
        token_ids, _ = self._uploads.put([each.token_id for each in samples])
        self._last_ids.index_copy_(0, forwarded.slots, token_ids)
        return lambda: computed


def _is_decode(batch: Batch) -> bool:
    """Whether row i is sequence i's one new token and gives its next, and nothing else is asked."""
    return batch.is_decode and not batch.prompt_rows and batch.logits_rows == list(range(len(batch)))


def _logits_rows(batch: Batch) -> list[int]:
    return batch.logits_rows + [row for each in batch.prompt_rows for row in each.rows]


def _token_ids(batch: Batch, slots: list[int]) -> list[int]:
    """The batch's, where a token that is being sampled is named by its sequence's slot."""
    if not batch.future_rows:
        return batch.input_ids
    token_ids, rows = list(batch.input_ids), {end - 1: row for row, end in enumerate(batch.cu_seqlens_q[1:])}
    for index, _ in batch.future_rows:
        token_ids[index] = -1 - slots[rows[index]]
    return token_ids
