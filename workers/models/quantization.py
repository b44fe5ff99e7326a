"""What config.json says of weights that are stored quantized."""

from collections.abc import Mapping
from typing import Any

from workers.models.errors import UnsupportedModel

WEIGHTS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
ACTIVATIONS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}


def refuse_unsupported(config: Mapping[str, Any]) -> None:
    """UnsupportedModel for all but compressed-tensors in int8, a scale for each output channel and for each token."""
    method = config.get("quant_method", "unknown")
    if method != "compressed-tensors":
        raise UnsupportedModel(f"weights quantized with {method}; use the unquantized checkpoint or a GGUF file")
    for name, group in config.get("config_groups", {}).items():
        _refuse_other(name, "weights", group.get("weights") or {}, WEIGHTS)
        _refuse_other(name, "input_activations", group.get("input_activations") or ACTIVATIONS, ACTIVATIONS)


def _refuse_other(group: str, what: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for key, value in wanted.items():
        if found.get(key) != value:
            raise UnsupportedModel(
                f"{what} of {group} in quantization_config have {key} = {found.get(key)}; supported is {value}"
            )
