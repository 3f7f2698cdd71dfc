"""What is kept of a slice: the result lines of rows that an earlier run has answered. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from shared import ids
from shared.answered import answered_line
from shared.input.bad_lines import error_of
from shared.input.cached_lines import cached_answer
from shared.input.request_lines import custom_id_of
from shared.slices import NO_COUNTS, Claim, Part, RowCounts, Slice, SliceUsage
from shared.spent import Spent, from_text
from shared.unanswered import unanswered_line


@dataclass(frozen=True)
class KeptRows:
    """Result lines and error lines, each by the row's position in the slice."""

    output: Mapping[int, bytes]
    error: Mapping[int, bytes]
    usage: SliceUsage
    #: GPU time of these rows.
    spent: Spent = field(default_factory=dict)
    counts: RowCounts = NO_COUNTS

    def __contains__(self, position: object) -> bool:
        return position in self.output or position in self.error

    def __len__(self) -> int:
        return len(self.output) + len(self.error)


NOTHING = KeptRows({}, {}, SliceUsage())


def kept_rows(slice_: Slice, part: Part | None, body: bytes) -> KeptRows:
    """What the part with this body keeps of the slice; nothing if the two do not agree.

    Then the rows run again, which costs time and harms no result.
    """
    if part is None or not part.fits(body):
        return NOTHING
    positions = {row: position for position, row in enumerate(slice_.row_numbers)}
    try:
        output = _lines(body[: part.output_bytes], positions)
        error = _lines(body[part.output_bytes :], positions)
    except (KeyError, ValueError):
        return NOTHING
    is_whole = len(output) + len(error) == part.rows and not output.keys() & error.keys()
    if not is_whole:
        return NOTHING
    return KeptRows(output, error, part.usage, from_text(part.spent), part.counts)


def with_bad_lines(kept: KeptRows, claim: Claim, lines: Sequence[bytes]) -> KeptRows:
    """The same with the errors that stand for bad lines of the slice: these rows never run."""
    slice_ = claim.slice
    if slice_.copy is None or not slice_.copy.has_errors:
        # A tenant may write what it likes into a line.
        return kept
    numbers = slice_.row_numbers
    found = {
        position: unanswered_line(claim.batch_id, numbers[position], custom_id_of(line), error)
        for position, line in enumerate(lines)
        if position not in kept and (error := error_of(line)) is not None
    }
    usage = kept.usage._replace(failed=kept.usage.failed + len(found))
    return replace(kept, error={**kept.error, **found}, usage=usage)


def with_known_rows(kept: KeptRows, claim: Claim, lines: Sequence[bytes]) -> KeptRows:
    """The same with the slice's rows that were answered in an earlier batch: these never run.

    They have taken no tokens of this one.
    """
    slice_ = claim.slice
    if slice_.copy is None or not slice_.copy.has_answers:
        return kept
    numbers = slice_.row_numbers
    found = {
        position: answered_line(
            claim.batch_id, numbers[position], custom_id_of(line), 200, answer, is_cached=True
        )
        for position, line in enumerate(lines)
        if position not in kept and (answer := cached_answer(line)) is not None
    }
    usage = kept.usage._replace(completed=kept.usage.completed + len(found))
    counts = kept.counts.plus(RowCounts(cached_rows=len(found)))
    return replace(kept, output={**kept.output, **found}, usage=usage, counts=counts)


def _lines(text: bytes, positions: Mapping[int, int]) -> dict[int, bytes]:
    """The lines by position. Raises KeyError or ValueError if one is not of this slice."""
    lines = [line for line in text.split(b"\n") if line]
    return {positions[ids.row_of_result(line)]: line + b"\n" for line in lines}
