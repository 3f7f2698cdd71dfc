"""What waits to be run: a slice in front of a lane, or a row in front of an engine. Pure."""

from math import inf
from typing import Any, NamedTuple


class Work(NamedTuple):
    """A slice or a row that waits. Times are Unix seconds."""

    batch_id: str
    #: Its place in the batch: the slice's index, or the row's number.
    number: int
    tenant: str
    priority: int
    created_at: float
    expires_at: float
    #: Predicted, of the prompt and the answer together.
    tokens: float
    #: Hashes of the prompt's first blocks, the first block first. Each one covers all blocks before
    #: its own, so equal hashes mean equal beginnings.
    prefix: tuple[int, ...] = ()
    #: The most tokens that the answer may have.
    max_output: float = inf
    #: Rows of a batch with the same kind have the same instructions, so their answers are of like
    #: length.
    kind: int = 0
    #: The tenant's: with twice the weight it gets twice the share.
    weight: float = 1.0
    #: Rows with different ones share no blocks of the engine's prefix cache.
    cache_salt: str = ""
    #: How many rows its batch has in all.
    batch_rows: float = inf
    #: Whether none of its batch comes after it, as far as whoever sends it knows.
    ends_batch: bool = False
    #: The tenant's LoRA adapter that the row runs with, as a reference of Ray's to its file.
    adapter: Any = None
    #: How many answers of the row did not fit its batch's schema: the engine keeps those.
    attempt: int = 0
