"""How long a step takes, learnt from those that were: what the size of prompt chunks is chosen by."""

from math import sqrt

FORGETTING = 0.98  # of what was seen, per step: the last fifty count
NUM_FIRST = 16  # steps before anything is predicted
DOUBT = 1e-6  # how much evidence a coefficient needs before it is changed
SCALES = (1.0, 1e-2, 1e-5)  # of the features, so that the three are of like size

Vector = list[float]


class StepTime:
    """seconds = a + b * rows + c * pairs, fitted step by step; pairs are of a query and a key that it attends to.

    Least squares with exponential forgetting (Ljung, System Identification, 1999, 11.2). What the latest steps say
    nothing about, as decoding alone does of `c`, stays as it was. A coefficient below 0 is read as 0: more work never
    takes less time.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        self.seconds_per_block = 0.0  # of a copy to the host or back, as last measured
        self._weights: Vector = [0.0, 0.0, 0.0]
        # Sums with forgetting, of x = rows and y = pairs, scaled: 1, x, y, xx, xy, yy, seconds, x * and y * seconds.
        self._sums: Vector = [0.0] * 9

    @property
    def is_known(self) -> bool:
        return self.num_steps >= NUM_FIRST

    def observe(self, seconds: float, num_rows: int, num_pairs: int) -> None:
        """Learn from a step of `num_rows` tokens that took `seconds`."""
        _, x, y = _features(num_rows, num_pairs)
        new = (1.0, x, y, x * x, x * y, y * y, seconds, x * seconds, y * seconds)
        self._sums = [FORGETTING * old + value for old, value in zip(self._sums, new, strict=True)]
        self.num_steps += 1
        self._fit()

    def seconds(self, num_rows: int, num_pairs: int) -> float:
        """What such a step is expected to take."""
        return sum(w * v for w, v in zip(self._coefficients(), _features(num_rows, num_pairs), strict=True))

    def most_rows(self, seconds: float, num_rows: int, num_pairs: int, context: int) -> int:
        """How many tokens behind `context` others may join a step of these rows and pairs, to keep it to `seconds`."""
        left = seconds - self.seconds(num_rows, num_pairs)
        if left <= 0:
            return 0
        _, per_row, per_pair = (w * scale for w, scale in zip(self._coefficients(), SCALES, strict=True))
        linear, quadratic = per_row + per_pair * context, per_pair / 2  # left = linear * q + quadratic * q**2
        if quadratic == 0:
            return int(left / linear) if linear > 0 else 2**31
        return int((sqrt(linear**2 + 4 * quadratic * left) - linear) / (2 * quadratic))

    def _fit(self) -> None:
        """Move the weights to where the errors that are remembered ask for, as far as there is evidence."""
        n, x, y, xx, xy, yy, *moments = self._sums
        errors = [
            moment - (p * self._weights[0] + q * self._weights[1] + r * self._weights[2])
            for moment, (p, q, r) in zip(moments, ((n, x, y), (x, xx, xy), (y, xy, yy)), strict=True)
        ]
        changes = _solve((n + DOUBT, x, y, xx + DOUBT, xy, yy + DOUBT), errors)
        self._weights = [w + change for w, change in zip(self._weights, changes, strict=True)]

    def _coefficients(self) -> Vector:
        return [max(0.0, w) for w in self._weights]


def _features(num_rows: int, num_pairs: int) -> Vector:
    return [SCALES[0], num_rows * SCALES[1], num_pairs * SCALES[2]]


def _solve(upper: tuple[float, float, float, float, float, float], right: Vector) -> Vector:
    """x of matrix @ x = right, for a symmetric positive definite 3 x 3 matrix, given row by row from its diagonal on.

    Gaussian elimination, written out: it runs in every step.
    """
    a, b, c, d, e, f = upper
    first, second, third = right
    d, e, second = d - b / a * b, e - b / a * c, second - b / a * first
    f, third = f - c / a * c - e / d * e, third - c / a * first - e / d * second
    z = third / f
    y = (second - e * z) / d
    return [(first - b * y - c * z) / a, y, z]
