"""How one row of logits is drawn from."""

from typing import NamedTuple


class Draw(NamedTuple):
    """The row's index, the distribution that is made of it, and where that is inverted.

    In the order of the struct in `cpu/sampling.h`.
    """

    row: int
    top_k: int  # 0: all
    temperature: float  # positive
    top_p: float  # 1: all
    min_p: float  # 0: all
    uniform: float  # a multiple of 2**-52 in [0, 1)

    @property
    def is_restricted(self) -> bool:
        """Whether it excludes any token."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0
