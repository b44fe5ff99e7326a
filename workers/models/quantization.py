"""What config.json says of weights that are stored quantized."""

from collections.abc import Mapping
from typing import Any

from workers.models.errors import UnsupportedModel

WEIGHTS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
ACTIVATIONS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
GROUP_SIZES = (32, 64, 128)


def refuse_unsupported(config: Mapping[str, Any]) -> None:
    """UnsupportedModel for all but three: compressed-tensors in int8, a scale for each output channel and for each
    token; GPTQ and AWQ in int4 groups that follow each other."""
    match config.get("quant_method", "unknown"):
        case "compressed-tensors":
            for name, group in config.get("config_groups", {}).items():
                _refuse_other(f"weights of {name}", group.get("weights") or {}, WEIGHTS)
                _refuse_other(
                    f"input_activations of {name}", group.get("input_activations") or ACTIVATIONS, ACTIVATIONS
                )
        case "gptq":
            _refuse_other("weights", {"desc_act": False, **config}, {"bits": 4, "desc_act": False})
            _refuse_groups(config)
            _refuse_layout(config.get("checkpoint_format", "gptq"), ("gptq", "gptq_v2"))
        case "awq":
            _refuse_other("weights", config, {"bits": 4})
            _refuse_groups(config)
            _refuse_layout(config.get("version", "gemm").lower(), ("gemm",))
        case method:
            raise UnsupportedModel(f"weights quantized with {method}; use the unquantized checkpoint or a GGUF file")


def int4_layout(config: Mapping[str, Any]) -> str | None:
    """How the int4 matrices of a checkpoint with this config.json lie in its files; None when it has none."""
    quantization = config.get("quantization_config", {})
    match quantization.get("quant_method"):
        case "gptq":
            return str(quantization.get("checkpoint_format", "gptq"))
        case "awq":
            return "awq"
    return None


def _refuse_groups(config: Mapping[str, Any]) -> None:
    if config.get("group_size") not in GROUP_SIZES:
        sizes = ", ".join(map(str, GROUP_SIZES))
        raise UnsupportedModel(f"groups of {config.get('group_size')} in quantization_config; supported are {sizes}")


def _refuse_layout(layout: str, supported: tuple[str, ...]) -> None:
    if layout not in supported:
        raise UnsupportedModel(f"int4 weights in the layout {layout}; supported: {', '.join(supported)}")


def _refuse_other(what: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for key, value in wanted.items():
        if found.get(key) != value:
            raise UnsupportedModel(f"{what} in quantization_config have {key} = {found.get(key)}; supported is {value}")
