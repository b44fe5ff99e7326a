"""Rotary frequencies, to the bit those of transformers, and how long a context they are for."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.checkpoints import make_checkpoint
from workers.models.config import read_config
from workers.models.errors import UnsupportedModel

ORIGINAL = {"original_max_position_embeddings": 256}
YARN = {"rope_type": "yarn", "factor": 4.0} | ORIGINAL
CASES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "linear, in the older spelling": {"type": "linear", "factor": 3.0},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0} | ORIGINAL,
    "yarn": YARN,
    "yarn, in the older spelling": {"type": "yarn", "factor": 4.0} | ORIGINAL,
    "yarn, of the whole context": {"rope_type": "yarn", "factor": 4.0},
    "yarn, of other turns": YARN | {"beta_fast": 20.0, "beta_slow": 2.0},
    "yarn, not truncated": YARN | {"truncate": False},
    "yarn, of one step": YARN | {"beta_fast": 2.0, "beta_slow": 2.0, "truncate": False},
    "yarn, of its own factor": YARN | {"attention_factor": 1.3},
    "yarn, of two scales": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7},
    "yarn, not stretched": YARN | {"factor": 1.0},
}


@pytest.mark.parametrize("scaling", CASES.values(), ids=CASES)
def test_frequencies_and_factor_are_those_of_transformers(tmp_path: Path, scaling: dict[str, Any]) -> None:
    shape = {"rope_theta": 1000000.0, "head_dim": 128, "max_position_embeddings": 1024}
    checkpoint = make_checkpoint(tmp_path / "model", rope_scaling=scaling, **shape)
    theirs = AutoConfig.from_pretrained(checkpoint)
    inv_freq, factor = ROPE_INIT_FUNCTIONS[theirs.rope_parameters["rope_type"]](theirs, "cpu")
    (rope, _) = read_config(checkpoint).ropes
    assert torch.equal(rope.inv_freq(128), inv_freq)
    assert rope.attention_factor == factor


def test_yarn_lengthens_the_context_that_the_config_leaves(tmp_path: Path) -> None:
    plain = make_checkpoint(tmp_path / "plain", "qwen3", max_position_embeddings=320)
    yarn = make_checkpoint(tmp_path / "yarn", "qwen3", max_position_embeddings=320, rope_scaling=YARN)
    assert read_config(plain).max_position_embeddings == 320
    assert read_config(yarn).max_position_embeddings == 1024


def test_scaling_without_its_factor_is_refused(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "model", rope_scaling={"rope_type": "linear"})
    with pytest.raises(UnsupportedModel, match="has no 'factor'"):
        read_config(checkpoint)
