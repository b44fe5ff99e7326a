"""The quality of each weight format: `python -m tests.bench.perplexity`. Writes the table to results/perplexity.md.

The demo model reads the beginning of Alice's Adventures in Wonderland, less its verses. Bfloat16 is what the model's
file dequantizes to, computed by PyTorch and by the CPU kernels; the others are that over an int8 KV cache, the file as
it is, what `HEADRACE_QUANTIZATION` makes of it, and int4 checkpoints that are made of it.
"""

import math
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from db.settings import Settings
from kernels.cpu.threads import Threads
from tests.bench import machine
from tests.bench.report import Report
from tests.workers.models.int4_files import LINEAR, name_int4, round_groups, write_config
from tests.workers.models.paged import PagedModel
from workers.models.card import read_card
from workers.models.decoder import Decoder
from workers.models.demo import demo_model_path
from workers.models.gguf import convert_weights
from workers.models.loader import load_model
from workers.models.recorded import RecordedModel

RESULTS = Path(__file__).parent / "results" / "perplexity.md"
TEXT = Path(__file__).parent / "texts" / "alice.txt"
WINDOW = 1024  # tokens that are read with what came before; the next begin anew
STEP = 128  # tokens in one step, so that their logits over a large vocabulary fit
MIB = 1 << 20
INT4: dict[str, tuple[str, int, bool]] = {  # the layout, columns in a group, and whether the zero points are all 8
    "GPTQ, groups of 128, symmetric": ("gptq", 128, True),
    "GPTQ, groups of 32, symmetric": ("gptq", 32, True),
    "AWQ, groups of 128": ("awq", 128, False),
    "AWQ, groups of 32": ("awq", 32, False),
}


@dataclass(frozen=True)
class Reading:
    """How well a model foretold each token of the text."""

    losses: torch.Tensor  # fp64 [tokens]: minus the log probability of each

    @property
    def perplexity(self) -> float:
        return math.exp(self.losses.mean())

    def beside(self, base: "Reading") -> str:
        """How much likelier a token is to the base, and the standard error of that."""
        differences = self.losses - base.losses
        error = differences.std() / len(differences) ** 0.5
        return f"{100 * math.expm1(differences.mean()):+.2f}%, standard error {100 * error:.2f}%"


def main() -> None:
    """Read the text in each format, write the table and print it."""
    cache_dir = Settings().data_dir / "models"
    path = demo_model_path(cache_dir)
    card = read_card(path, cache_dir=cache_dir)
    windows = _windows(Tokenizer.from_file(str(card.tokenizer_path)))
    report = Report(_heading(path, sum(map(len, windows))))
    base = _read(_plain(path, cache_dir), windows)
    report.add("bf16 by PyTorch", f"{base.perplexity:.3f}", "the file's weights dequantized")
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = _dequantized(path, cache_dir, Path(directory))
        for name, source, packing, kv_dtype in (
            ("bf16", checkpoint, "bf16", torch.bfloat16),
            ("bf16 with an int8 KV cache", checkpoint, "bf16", torch.int8),
            ("the GGUF file's own types", path, "bf16", torch.bfloat16),
            ("int8", checkpoint, "int8", torch.bfloat16),
            ("int4", checkpoint, "int4", torch.bfloat16),
            *((name, _int4(checkpoint, Path(directory), name), "bf16", torch.bfloat16) for name in INT4),
        ):
            cache = Path(directory) / name
            reading = _read(_recorded(source, cache, packing), windows, kv_dtype)
            size = sum(file.stat().st_size for file in cache.glob("packed/*/weights.bin"))
            figures = f"{reading.perplexity:.3f}, {reading.beside(base)}"
            report.add(f"{name}, {size / MIB:.0f} MiB", figures, "the CPU kernels; perplexity beside the first")
    report.notes.append(NOTE)
    report.write(RESULTS)


NOTE = (
    "The file was itself quantized from bfloat16 weights, which are not at hand: what its own types lost before is in "
    "every row. An int8 KV cache has a scale for K and one for V of each token and head. int8 and int4 have a scale "
    "for each row of a weight and for each token, and int4 two integers for each group of 32 columns; the file's "
    "types have a scale for each group of 32 columns or less of both. The checkpoints of GPTQ and AWQ are made here, "
    "in their layouts but by plain rounding to the nearest, the embedding in bfloat16; those tools fit their integers "
    "to a text, and lose less."
)


def _heading(path: Path, num_tokens: int) -> list[str]:
    return [
        *machine.describe(),
        "command: `python -m tests.bench.perplexity`",
        f"model: {path.stem}; {num_tokens:,} tokens of {TEXT.name}, in windows of {WINDOW:,}, each after a start token",
        "the sizes are those of the packed matrices",
    ]


def _windows(tokenizer: Tokenizer) -> list[list[int]]:
    """The text's tokens, each window after the token that starts a text."""
    start, *token_ids = tokenizer.encode(TEXT.read_text()).ids
    return [[start, *token_ids[i : i + WINDOW]] for i in range(0, len(token_ids), WINDOW)]


def _plain(path: Path, cache_dir: Path) -> Decoder:
    return load_model(path, cache_dir=cache_dir, dtype=torch.bfloat16, device="cpu")


def _recorded(path: Path, cache_dir: Path, packing: str) -> RecordedModel:
    decoder = load_model(path, cache_dir=cache_dir, dtype=torch.bfloat16, device="cpu", packing=packing)
    threads = Threads(torch.get_num_threads())
    return RecordedModel(decoder, threads, max_tokens=STEP, max_rows=STEP, max_positions=WINDOW + 1)


def _dequantized(path: Path, cache_dir: Path, directory: Path) -> Path:
    """A checkpoint of the file's weights in bfloat16."""
    card = read_card(path, cache_dir=cache_dir).tokenizer_path.parent
    checkpoint = directory / "bf16"
    checkpoint.mkdir()
    for file in [card / "config.json", *convert_weights(path, card, torch.bfloat16)]:
        (checkpoint / file.name).symlink_to(file.resolve())
    return checkpoint


def _int4(checkpoint: Path, directory: Path, name: str) -> Path:
    """The same with the layers' matrices rounded to four bits."""
    layout, group_size, is_symmetric = INT4[name]
    path = directory / f"{name}, checkpoint"
    path.mkdir()
    tensors = {}
    for file in checkpoint.glob("*.safetensors"):
        for key, tensor in load_file(file).items():
            tensors[key] = tensor
            if LINEAR.search(key):
                rounded = round_groups(tensors.pop(key).float().numpy(), group_size, is_symmetric=is_symmetric)
                tensors |= {part: torch.from_numpy(packed) for part, packed in name_int4(key, *rounded, layout).items()}
    save_file(tensors, path / "model.safetensors")
    shutil.copy(checkpoint / "config.json", path)
    write_config(path, layout, group_size=group_size, is_symmetric=is_symmetric)
    return path


def _read(model: Decoder | RecordedModel, windows: list[list[int]], kv_dtype: torch.dtype = torch.bfloat16) -> Reading:
    losses = []
    paged = PagedModel(model, max_len=WINDOW + 1, kv_dtype=kv_dtype)
    for window in windows:
        paged.num_computed = [0]
        for begin in range(0, len(window) - 1, STEP):
            end = min(begin + STEP, len(window) - 1)
            [logits] = paged.step({0: window[begin:end]})
            targets = torch.tensor(window[begin + 1 : end + 1])
            losses.append(torch.nn.functional.cross_entropy(logits.float(), targets, reduction="none").double())
    return Reading(torch.cat(losses))


if __name__ == "__main__":
    main()
