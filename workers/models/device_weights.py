"""A checkpoint's matrices as the kernels of a GPU take them: what is stored in int8 or int4 stays so."""

from collections.abc import Sequence

import torch

from kernels import Weight
from kernels.cpu.pack_int8 import quantize_int8
from kernels.int4_groups import GROUP, round_int4
from kernels.quantized import Int8Matrix, QuantizedMatrix, make_int4
from workers.models.packings import AS_STORED
from workers.models.stored import StoredWeight, joined
from workers.models.weights import Checkpoint, Weights


class DeviceWeights(Weights):
    """Weights whose matrices may be quantized. Rows that are looked up, and experts, are floats."""

    def __init__(
        self, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device | str, quantization: str
    ) -> None:
        """`quantization` is AS_STORED, int8 or int4."""
        super().__init__(checkpoint, dtype=dtype, device=device)
        self._quantization = quantization

    def matrix(self, *names: str, is_gated: bool = False, is_exact: bool = False) -> Weight:
        weights = [self._read(name) for name in names]
        forms = {weight.form for weight in weights}
        form = forms.pop() if len(forms) == 1 else None
        if form in ("int8", "int4") and self._quantization in (AS_STORED, form):
            return self._kept(joined(weights))
        return self._floats(weights) if is_exact else self._quantized(weights)

    def table(self, name: str) -> Weight:
        return self.plain(name)

    def _kept(self, weight: StoredWeight) -> QuantizedMatrix:
        tensors = [tensor.to(self.device) for tensor in weight.tensors]
        if weight.form == "int8":
            rows, scales = tensors
            return Int8Matrix(rows.contiguous(), scales.contiguous())
        return make_int4(*tensors)

    def _quantized(self, weights: Sequence[StoredWeight]) -> Weight:
        """Rounded as it is asked for, on the device; in floats if nothing is, or if rows are no whole groups."""
        match self._quantization:
            case "int8":
                return Int8Matrix(*quantize_int8(self._wide(weights)))
            case "int4" if (wide := self._wide(weights)).shape[1] % GROUP == 0:
                return make_int4(*round_int4(wide))
        return self._floats(weights)

    def _wide(self, weights: Sequence[StoredWeight]) -> torch.Tensor:
        return torch.cat([weight.floats().to(self.device) for weight in weights])
