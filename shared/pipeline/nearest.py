"""The rows of a table whose vectors are nearest to others. Pure.

It alone knows numpy, which only pipelines with such a stage load.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.pipeline.declaration import Metric, is_component

#: Scores that are held at a time.
_SCORES_AT_ONCE = 8 * 1024 * 1024


class Near(NamedTuple):
    """A row of the table by its number, and how near it is: more is nearer."""

    row: int
    score: float


class Vectors:
    """The vectors of a table, one for each row."""

    def __init__(self, numbers: Any, dimensions: int, metric: Metric) -> None:
        """`numbers` are those of all vectors, one after the other: a buffer of 32-bit floats."""
        matrix = np.frombuffer(numbers, np.float32).reshape(-1, dimensions)
        self.dimensions = dimensions
        self._is_cosine = metric == "cosine"
        self._matrix = _with_length_one(matrix) if self._is_cosine else matrix

    def vector(self, value: object) -> NDArray[np.float32] | None:
        """The value as a vector that can be compared; None if it is none."""
        if not isinstance(value, list) or len(value) != self.dimensions:
            return None
        return np.array(value, np.float32) if all(map(is_component, value)) else None

    def nearest(self, vectors: Sequence[NDArray[np.float32]], k: int) -> list[list[Near]]:
        """The `k` nearest rows to each of the vectors, the nearest first.

        Of rows that are as near as each other, the first ones count.
        """
        step = max(1, _SCORES_AT_ONCE // max(1, len(self._matrix)))
        return [
            near
            for start in range(0, len(vectors), step)
            for near in self._together(vectors[start : start + step], k)
        ]

    def _together(self, vectors: Sequence[NDArray[np.float32]], k: int) -> list[list[Near]]:
        wanted = np.stack(vectors)
        scores = (_with_length_one(wanted) if self._is_cosine else wanted) @ self._matrix.T
        return [_best(row, k) for row in scores]


def _best(scores: NDArray[np.float32], k: int) -> list[Near]:
    found = np.arange(len(scores))
    if k < len(scores):
        least = np.partition(scores, len(scores) - k)[len(scores) - k]
        # All that are as near as the last one, so that their order decides.
        found = np.flatnonzero(scores >= least)
    order = found[np.argsort(-scores[found], kind="stable")][:k]
    return [Near(int(row), float(scores[row])) for row in order]


def _with_length_one(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """The vectors with their directions alone; one without a length stays as it is."""
    lengths = np.sqrt((vectors * vectors).sum(axis=1, keepdims=True))
    found: NDArray[np.float32] = vectors / np.where(lengths == 0, np.float32(1), lengths)
    return found
