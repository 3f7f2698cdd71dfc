"""Which texts are nearest in meaning: cosine similarity of embeddings. Does no I/O."""

import math
from collections.abc import Mapping, Sequence
from operator import mul

Vector = Sequence[float]


def nearest(
    question: Vector, vectors: Mapping[str, Vector], *, limit: int
) -> list[tuple[float, str]]:
    """The names of the most similar vectors with their similarity, most similar first."""
    found = ((similarity(question, vector), name) for name, vector in vectors.items())
    return sorted(found, reverse=True)[:limit]


def similarity(one: Vector, other: Vector) -> float:
    """The cosine of the angle between the two: 1 for the same direction, 0 for unrelated ones."""
    length = math.sqrt(sum(map(mul, one, one)) * sum(map(mul, other, other)))
    return sum(map(mul, one, other)) / length if length else 0.0
