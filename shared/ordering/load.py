"""The load of other tenants on a lane, as a class only. Pure.

No tenant may measure another, so nothing here distinguishes two loads of the same class.
"""

from math import floor, log10
from typing import Literal

Load = Literal[
    "none",
    "under 100",
    "under 1,000",
    "under 10,000",
    "under 100,000",
    "under 1,000,000",
    "1,000,000 or more",
]

#: Each class: the first number of rows that is above it, and the number that stands for it in
#: predictions, which is off by a factor of three or so at most.
_CLASSES: tuple[tuple[Load, float, int], ...] = (
    ("none", 1, 0),
    ("under 100", 100, 30),
    ("under 1,000", 1_000, 300),
    ("under 10,000", 10_000, 3_000),
    ("under 100,000", 100_000, 30_000),
    ("under 1,000,000", 1_000_000, 300_000),
    ("1,000,000 or more", float("inf"), 3_000_000),
)


def load_of(rows: int) -> Load:
    """The class that this many rows of other tenants fall into."""
    return next(name for name, above, _ in _CLASSES if rows < above)


def typical_rows(load: Load) -> int:
    """The number of rows that stands for the class."""
    return next(typical for name, _, typical in _CLASSES if name == load)


def rounded_rate(rate: float) -> float:
    """A lane's rate, rounded down to 1, 2 or 5 times a power of ten.

    The exact rate less one's own would be the rate of the others.
    """
    if rate <= 0:
        return 0.0
    power = 10.0 ** floor(log10(rate))
    step = max(step for step in (1, 2, 5) if step == 1 or step * power <= rate)
    # Powers below 1 are not exact in binary.
    return float(f"{step * power:.1g}")
