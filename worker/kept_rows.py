"""What is kept of a slice: the result lines of rows that an earlier run has answered. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shared import ids
from shared.slices import Part, Slice, SliceUsage
from shared.spent import Spent, from_text


@dataclass(frozen=True)
class KeptRows:
    """Result lines and error lines, each by the row's position in the slice."""

    output: Mapping[int, bytes]
    error: Mapping[int, bytes]
    usage: SliceUsage
    #: GPU time of these rows.
    spent: Spent = field(default_factory=dict)

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
    return KeptRows(output, error, part.usage, from_text(part.spent))


def _lines(text: bytes, positions: Mapping[int, int]) -> dict[int, bytes]:
    """The lines by position. Raises KeyError or ValueError if one is not of this slice."""
    lines = [line for line in text.split(b"\n") if line]
    return {positions[ids.row_of_result(line)]: line + b"\n" for line in lines}
