"""How many rows an engine holds, how many wait for it, and how many one call brings. Pure."""

from shared.catalog import Model

#: Fewer rows per call mean more calls. More rows per call leave an engine idle at the end of each.
ROWS_PER_ENGINE_CALL = 16

#: Used where the catalog does not set them. vLLM's own guesses are too low for batches.
DEFAULT_MAX_NUM_SEQS = 256
DEFAULT_MAX_NUM_BATCHED_TOKENS = 8192


#: Where the catalog does not set `spare_seats`: this part of the seats, and at least these.
_SPARE_PART, _MIN_SPARE = 16, 8


def seats(model: Model) -> int:
    """How many rows one replica computes at once."""
    return int(model.engine.get("max_num_seqs", DEFAULT_MAX_NUM_SEQS))


def spare_seats(model: Model) -> int:
    """How many more rows one replica computes if they are of small batches."""
    wanted = model.spare_seats
    if wanted is None:
        wanted = max(_MIN_SPARE, seats(model) // _SPARE_PART)
    # vLLM refuses more seats than tokens of a step.
    tokens = int(model.engine.get("max_num_batched_tokens", DEFAULT_MAX_NUM_BATCHED_TOKENS))
    return max(0, min(wanted, tokens - seats(model)))


def rows_at_once(model: Model) -> int:
    """How many rows all replicas together compute at once."""
    return model.max_replicas * seats(model)


def with_queue(rows: int) -> int:
    """`rows` and the short queue that keeps an engine full; a long queue only delays rows."""
    return rows + rows // 4
