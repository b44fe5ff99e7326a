"""Packing: once for the same files, anew for others, and how far it is."""

import logging
import os
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.numpy import load_file, save_file

from tests.checkpoints import make_checkpoint
from tests.workers.models.gguf_files import write_gguf
from tests.workers.models.int4_files import write_int4
from workers.models.cache import build_once
from workers.models.decoder import Decoder
from workers.models.errors import BadCheckpoint
from workers.models.fingerprint import fingerprint
from workers.models.loader import load_model
from workers.models.packed_cache import NUM_KEPT
from workers.models.packed_weights import LAYOUT
from workers.models.progress import Progress


def load(path: Path, packing: str = "bf16") -> Decoder:
    return load_model(path, cache_dir=path.parent / "cache", dtype=torch.bfloat16, device="cpu", packing=packing)


def pack(path: Path, packing: str = "bf16") -> list[Path]:
    """Directories of packed weights after the checkpoint at `path` was loaded, and let go."""
    load(path, packing)
    return [each for each in (path.parent / "cache" / "packed").iterdir() if each.is_dir()]


def test_other_weights_of_equal_size_and_time_are_packed_anew(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model")
    file = path / "model.safetensors"
    [first] = pack(path)
    assert pack(path) == [first]
    stat, before = file.stat(), fingerprint([file])
    weights = load_file(file)
    weights["model.layers.1.mlp.up_proj.weight"] *= 2
    save_file(weights, file, metadata={"format": "pt"})
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    assert fingerprint([file]) != before
    [second] = pack(path)
    assert second != first


def test_weights_of_the_checkpoint_before_it_changed_stay_while_a_model_has_them(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model")
    model = load(path)
    (path / "model.safetensors").touch()
    assert len(pack(path)) == len(pack(path, "int8")) - 1 == 2
    del model
    assert len(pack(path)) == 2


def test_of_other_checkpoints_those_used_last_are_kept(tmp_path: Path) -> None:
    paths = [make_checkpoint(tmp_path / f"model{i}") for i in range(NUM_KEPT + 1)]
    names = {path: set[str]() for path in paths}
    kept: set[str] = set()
    for path in [*paths[:-1], paths[0], paths[-1]]:
        before, kept = kept, {each.name for each in pack(path)}
        names[path] |= kept - before
    assert len(kept) == NUM_KEPT
    assert kept == set.union(*(names[path] for path in paths if path != paths[1]))


def test_weights_in_the_layout_of_another_version_are_removed(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model")
    build_once(tmp_path / "cache" / "packed" / f"{16 * '0'}-{LAYOUT - 1}-bf16", Path.mkdir)
    [packed] = pack(path)
    assert packed.name.endswith(f"-{LAYOUT}-bf16")


def test_each_packing_is_kept_beside_the_others(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model")
    assert [len(pack(path, packing)) for packing in ("bf16", "int8", "int4", "int8")] == [1, 2, 3, 3]


def test_tensor_that_the_architecture_does_not_use_leaves_nothing_packed(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model")
    weights = load_file(path / "model.safetensors")
    weights["model.layers.0.self_attn.sinks"] = weights["model.norm.weight"]
    save_file(weights, path / "model.safetensors")
    for _ in range(2):
        with pytest.raises(BadCheckpoint, match=r"1 tensors that .* such as model\.layers\.0\.self_attn\.sinks"):
            pack(path)


def test_log_tells_how_far_packing_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="workers.models.progress"):
        pack(make_checkpoint(tmp_path / "model", num_hidden_layers=8))
    percents = [int(record.getMessage().split()[-2]) for record in caplog.records]
    assert percents == sorted(percents) and len(percents) > 5 and percents[-1] == 100
    assert caplog.records[0].getMessage().startswith("packing the weights: ")


def test_weights_that_grow_as_they_are_read_are_done_at_one_hundred(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = make_checkpoint(tmp_path / "plain")
    int4, _ = write_int4(plain, tmp_path, "awq", group_size=32)
    with caplog.at_level(logging.INFO, logger="workers.models.progress"):
        pack(int4)
        pack(write_gguf(plain, tmp_path / "model.gguf", quantization=GGMLQuantizationType.Q4_1))
    packing = [record.getMessage() for record in caplog.records if record.getMessage().startswith("packing")]
    assert packing.count("packing the weights: 100 %") == 2
    assert max(int(message.split()[-2]) for message in packing) == 100


def test_each_tenth_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    progress = Progress("converting", 1000)
    with caplog.at_level(logging.INFO, logger="workers.models.progress"):
        for num_bytes in (99, 1, 99, 250, 551):
            progress.add(num_bytes)
    assert [record.getMessage() for record in caplog.records] == [
        "converting: 10 %",
        "converting: 40 %",
        "converting: 100 %",
    ]
