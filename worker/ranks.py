"""The ranks of rows in an engine, which are vLLM's priorities: the lower goes first. Pure."""

#: Ranks of rows of small batches are lower by this than all others, and those of live calls by
#: twice as much.
FIRST = 1 << 40


def is_small(rank: int) -> bool:
    """Whether it is that of a row of a small batch."""
    return -FIRST <= rank < 0
