"""How fast a batch runs and how long it will take, out of the marks of its pace."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from gateway.ui.words import compact, duration
from shared.openai.shapes import Predicted
from shared.state.paces import Mark

#: A rate is measured over each of these; the slowest and the fastest give a range.
_WINDOWS = (15.0, 60.0, 300.0)
_MIN_SECONDS = 1.0
_WIDTH, _HEIGHT = 640, 140
#: Steps of a plot: rates of single seconds jump.
_STEPS = 48


class Plot(NamedTuple):
    """A curve of rates: the points of an SVG line, and the words for its axes."""

    line: str
    area: str
    top: str
    length: str
    #: What a screen reader says of it.
    text: str
    width: int = _WIDTH
    height: int = _HEIGHT


def rates(marks: Sequence[Mark], now: float) -> tuple[float, float]:
    """Rows and tokens per second over the last minute; zeros before there is a measurement."""
    first = _before(marks, now - _WINDOWS[1])
    if first is None or now - first.at < _MIN_SECONDS:
        return 0.0, 0.0
    last = marks[-1]
    return (last.rows - first.rows) / (now - first.at), (last.tokens - first.tokens) / (
        now - first.at
    )


def seconds_left(marks: Sequence[Mark], total: int, now: float) -> tuple[float, float] | None:
    """The shortest and the longest time that the other rows may take; None if nobody knows."""
    found = []
    for start in (*(now - window for window in _WINDOWS), 0.0):
        first = _before(marks, start)
        if first is None or now - first.at < _MIN_SECONDS:
            continue
        if rows := marks[-1].rows - first.rows:
            found.append(rows / (now - first.at))
    if not found:
        return None
    left = total - marks[-1].rows
    return left / max(found), left / min(found)


def range_left(
    predicted: Predicted | None, marks: Sequence[Mark], total: int, now: float
) -> tuple[float, float] | None:
    """The seconds until a batch has probably ended: as predicted, or else by its paces so far."""
    if predicted is not None:
        return max(1.0, predicted.finish_at - now), max(1.0, predicted.finish_p80_at - now)
    return seconds_left(marks, total, now)


def plot(marks: Sequence[Mark], what: str, *, of_tokens: bool = False) -> Plot | None:
    """The rate over time; None while there is too little to see."""
    if not marks or marks[-1].at - marks[0].at < _MIN_SECONDS:
        return None
    begin, end = marks[0].at, marks[-1].at
    steps = min(_STEPS, max(2, int(end - begin)))
    width = (end - begin) / steps
    counts = [_count_at(marks, begin + width * step, of_tokens) for step in range(steps + 1)]
    values = [(after - before) / width for before, after in pairwise(counts)]
    highest = max(values)
    if highest <= 0:
        return None
    points = [
        (round(_WIDTH * (step + 0.5) / steps, 1), round(_HEIGHT * (1 - 0.92 * one / highest), 1))
        for step, one in enumerate(values)
    ]
    line = " ".join(f"{x},{y}" for x, y in points)
    area = f"{points[0][0]},{_HEIGHT} {line} {points[-1][0]},{_HEIGHT}"
    mean = (counts[-1] - counts[0]) / (end - begin)
    return Plot(
        line,
        area,
        f"{compact(highest)}/s",
        duration(end - begin),
        f"{what} per second over {duration(end - begin)}: {compact(mean)} on average, "
        f"{compact(highest)} at most.",
    )


def _before(marks: Sequence[Mark], at: float) -> Mark | None:
    """The last mark before the time, or else the first one."""
    earlier = [mark for mark in marks if mark.at <= at]
    return (earlier[-1] if earlier else marks[0]) if marks else None


def _count_at(marks: Sequence[Mark], at: float, of_tokens: bool) -> float:  # noqa: FBT001  # rows or tokens
    """How many were done at a time between two marks."""
    before = marks[0]
    for mark in marks:
        if mark.at >= at:
            span = mark.at - before.at
            share = (at - before.at) / span if span else 1.0
            low, high = _count(before, of_tokens), _count(mark, of_tokens)
            return low + share * (high - low)
        before = mark
    return float(_count(marks[-1], of_tokens))


def _count(mark: Mark, of_tokens: bool) -> int:  # noqa: FBT001  # as above
    return mark.tokens if of_tokens else mark.rows
