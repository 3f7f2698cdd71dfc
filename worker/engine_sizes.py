"""How many rows an engine holds, how many wait for it, and how many one call brings. Pure."""

from shared.catalog import Model

#: Fewer rows per call mean more calls. More rows per call leave an engine idle at the end of each.
ROWS_PER_ENGINE_CALL = 16

#: Used where the catalog does not set `max_num_seqs`. vLLM's own guess is too low for batches.
DEFAULT_MAX_NUM_SEQS = 256


def seats(model: Model) -> int:
    """How many rows one replica computes at once."""
    return int(model.engine.get("max_num_seqs", DEFAULT_MAX_NUM_SEQS))


def rows_at_once(model: Model) -> int:
    """How many rows all replicas together compute at once."""
    return model.max_replicas * seats(model)


def with_queue(rows: int) -> int:
    """`rows` and the short queue that keeps an engine full; a long queue only delays rows."""
    return rows + rows // 4
