"""When a count that grows at an uneven rate reaches a number: at the earliest, probably, at the latest."""

from dataclasses import dataclass
from math import inf, sqrt

Z = 1.645  # of the normal distribution: nine in ten starts are to fall between earliest and latest


@dataclass(frozen=True)
class StartIn:
    """Seconds until a waiting job starts. Infinite: it may be never."""

    earliest: float
    likely: float
    latest: float

    def or_by(self, other: "StartIn") -> "StartIn":
        """The start of a job that starts by whichever way is first."""
        return StartIn(
            min(self.earliest, other.earliest), min(self.likely, other.likely), min(self.latest, other.latest)
        )

    def after(self, seconds: float, *, not_before: "StartIn") -> "StartIn":
        """The same, so much later and not before the other."""
        return StartIn(
            max(not_before.earliest, self.earliest + seconds),
            max(not_before.likely, self.likely + seconds),
            max(not_before.latest, self.latest + seconds),
        )


@dataclass(frozen=True)
class Progress:
    """A count that in t seconds grows by `per_second` * t, with the variance `variance` * t + (`doubt` * t)^2.

    `variance` comes from chance, second by second; `doubt` is how far `per_second` itself may be off.
    """

    per_second: float
    variance: float
    doubt: float

    def reaches(self, number: float) -> StartIn:
        """The times t at which `number` is the expected count, and 1.645 standard deviations above and below it.

        The outer two are the roots of (number - per_second * t)^2 = Z^2 * (variance * t + (doubt * t)^2).
        """
        rate = max(0.0, self.per_second)
        square = rate**2 - (Z * self.doubt) ** 2
        linear = 2 * number * rate + Z**2 * self.variance
        root = sqrt(max(0.0, linear**2 - 4 * square * number**2))
        latest = (linear + root) / (2 * square) if square > 0 else inf
        return StartIn(2 * number**2 / (linear + root), number / rate if rate > 0 else inf, latest)
