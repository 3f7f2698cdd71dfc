"""How many rows an engine holds, how many wait for it, and how many one call brings. Pure."""

from shared.catalog import Model

#: One call brings this part of an engine's seats, between these bounds. A short row costs about as
#: much as its part of a call, and a call of twice as many rows hardly more than one of half as
#: many; several calls keep an engine full while some of them end.
_CALL_PART, _MIN_CALL_ROWS, _MAX_CALL_ROWS = 4, 16, 256
#: The same part where a row takes one step: its seats are as many as it has rows in a moment.
_VECTORS_CALL_PART = 1
#: So many times the rows that an engine computes at once are on their way, there and back. Where a
#: row takes one step, most of them are being tokenized, written or sent.
_AHEAD, _VECTORS_AHEAD = 2, 4

#: On fewer, the start of a second one costs more than it brings.
_PROCESSORS_FOR_TWO_MAPPERS = 8
#: Used where the catalog does not set it. vLLM's own guess is too low for batches.
DEFAULT_MAX_NUM_BATCHED_TOKENS = 8192
#: Where the catalog does not set `spare_seats`: this part of the seats, and at least these.
_SPARE_PART, _MIN_SPARE = 16, 8
#: The same for the seats of live calls.
_LIVE_PART, _MIN_LIVE = 8, 8


def spare_seats(model: Model) -> int:
    """How many more rows one replica computes if they are of small batches."""
    wanted = model.spare_seats
    if wanted is None:
        wanted = max(_MIN_SPARE, model.seats // _SPARE_PART)
    return max(0, min(wanted, _step_tokens(model) - model.seats))


def live_seats(model: Model) -> int:
    """How many seats of one replica are for live calls alone; 0 if the model takes none."""
    if model.live is None:
        return 0
    wanted = model.live.seats
    if wanted is None:
        wanted = max(_MIN_LIVE, model.seats // _LIVE_PART)
    return max(0, min(wanted, _step_tokens(model) - model.seats - spare_seats(model)))


def _step_tokens(model: Model) -> int:
    """The tokens of one step. vLLM refuses more seats than these."""
    return int(model.engine.get("max_num_batched_tokens", DEFAULT_MAX_NUM_BATCHED_TOKENS))


def rows_of_call(model: Model, asked: int | None = None) -> int:
    """How many rows one call to the engine brings; the settings may ask for a number."""
    if asked is not None:
        return asked
    part = _VECTORS_CALL_PART if model.runner == "pooling" else _CALL_PART
    return max(_MIN_CALL_ROWS, min(_MAX_CALL_ROWS, model.seats // part))


def mappers_of_wave(processors: int, asked: int | None = None) -> int:
    """How many processes a wave has; the settings may ask for a number.

    Short rows fill one process, and each takes seconds of a processor to start.
    """
    if asked is not None:
        return asked
    return 2 if processors >= _PROCESSORS_FOR_TWO_MAPPERS else 1


def rows_at_once(model: Model) -> int:
    """How many rows all replicas together compute at once."""
    return model.max_replicas * model.seats


def rows_ahead(model: Model, rows: int | None = None) -> int:
    """How many rows one path may have in the engine's queue and inside; it computes `rows` at once.

    They keep the seats full while results travel back and other rows come. More would only make
    more rows run again when the engine dies: the order among them is that of the queue.
    """
    part = _VECTORS_AHEAD if model.runner == "pooling" else _AHEAD
    return part * (rows_at_once(model) if rows is None else rows)


def small_rows(model: Model) -> int:
    """How many rows of small batches run although others have taken all the room."""
    return rows_ahead(model, model.max_replicas * spare_seats(model))


#: As many rows as four slices have; an engine with few seats runs whole slices, too.
_MIN_TURN_ROWS = 512


def turn_rows(model: Model) -> int:
    """How many rows of batches of which little runs may run although others have all the room.

    They wait in the engine's queue, which is fair among those that it knows.
    """
    return max(_MIN_TURN_ROWS, 4 * rows_ahead(model))
