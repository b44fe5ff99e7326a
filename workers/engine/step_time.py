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
        self._products: list[Vector] = [[0.0] * 3 for _ in range(3)]  # sums of x * x, with forgetting
        self._moments: Vector = [0.0] * 3  # sums of x * seconds

    @property
    def is_known(self) -> bool:
        return self.num_steps >= NUM_FIRST

    def observe(self, seconds: float, num_rows: int, num_pairs: int) -> None:
        """Learn from a step of `num_rows` tokens that took `seconds`."""
        x = _features(num_rows, num_pairs)
        for row, value in zip(self._products, x, strict=True):
            row[:] = [FORGETTING * p + value * v for p, v in zip(row, x, strict=True)]
        self._moments = [FORGETTING * m + v * seconds for m, v in zip(self._moments, x, strict=True)]
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
        errors = [
            moment - sum(p * w for p, w in zip(row, self._weights, strict=True))
            for moment, row in zip(self._moments, self._products, strict=True)
        ]
        doubted = [[p + DOUBT * (i == j) for j, p in enumerate(row)] for i, row in enumerate(self._products)]
        self._weights = [w + change for w, change in zip(self._weights, _solve(doubted, errors), strict=True)]

    def _coefficients(self) -> Vector:
        return [max(0.0, w) for w in self._weights]


def _features(num_rows: int, num_pairs: int) -> Vector:
    return [SCALES[0], num_rows * SCALES[1], num_pairs * SCALES[2]]


def _solve(matrix: list[Vector], right: Vector) -> Vector:
    """x of matrix @ x = right, for a small positive definite matrix: Gaussian elimination."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    size = len(rows)
    for i in range(size):
        for j in range(i + 1, size):
            factor = rows[j][i] / rows[i][i]
            rows[j] = [a - factor * b for a, b in zip(rows[j], rows[i], strict=True)]
    solution = [0.0] * size
    for i in reversed(range(size)):
        known = sum(rows[i][j] * solution[j] for j in range(i + 1, size))
        solution[i] = (rows[i][size] - known) / rows[i][i]
    return solution
