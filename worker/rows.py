"""Request lines in, result lines out. Bodies stay opaque bytes from end to end. Pure."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from shared.answered import answered_line
from shared.input.request_lines import custom_id_of
from shared.slices import NO_COUNTS, RowCounts, Slice, SliceUsage
from shared.spent import NOTHING as NOTHING_SPENT
from shared.spent import Spent, plus
from worker.engine_errors import Result
from worker.kept_rows import NOTHING, KeptRows

_SUCCESS = 200


class PartBody(NamedTuple):
    """The results of a slice: the result lines and the error lines, each in input order."""

    output: bytes
    error: bytes
    usage: SliceUsage
    #: GPU time of these rows.
    spent: Spent = NOTHING_SPENT
    counts: RowCounts = NO_COUNTS

    @property
    def rows(self) -> int:
        return self.usage.completed + self.usage.failed


class _InputDetails(msgspec.Struct):
    cached_tokens: int | None = 0


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: int | None = 0


class _Usage(msgspec.Struct):
    """Tokens as vLLM counts them, with the field names of both of OpenAI's API families."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None
    #: Anthropic's, which are not among its input tokens.
    cache_read_input_tokens: int | None = None


class _Body(msgspec.Struct):
    usage: _Usage | None = None


_BODY = msgspec.json.Decoder(_Body)
_NO_USAGE = _Usage()
#: Of a row with an error.
_FAILED = SliceUsage(failed=1)


def nothing() -> PartBody:
    """The results of a slice that did not run."""
    return PartBody(b"", b"", SliceUsage())


def assemble(
    batch_id: str,
    slice_: Slice,
    lines: Sequence[bytes],
    results: Sequence[Result | None],
    kept: KeptRows = NOTHING,
    *,
    pool: str = "",
    refused: Sequence[Result] = (),
) -> PartBody:
    """The part of a slice, from its rows' results; None where one did not run.

    A row without a result has the line that is kept of it, if there is one. `pool` is that of the
    engine which computed the results. `refused` are answers that did not fit: they took tokens and
    time, and are in no line.
    """
    output = dict(kept.output)
    error = dict(kept.error)
    usages, micros = [kept.usage], 0
    numbers = slice_.row_numbers
    for position, (line, result) in enumerate(zip(lines, results, strict=True)):
        if result is None:
            continue
        status, body, *spent = result
        micros += sum(spent)
        is_success = status == _SUCCESS
        (output if is_success else error)[position] = answered_line(
            batch_id, numbers[position], custom_id_of(line), status, body
        )
        usages.append(usage_of(body) if is_success else _FAILED)
    for _, body, *spent in refused:
        micros += sum(spent)
        usages.append(usage_of(body)._replace(completed=0))
    counts = kept.counts.plus(RowCounts(asked_again=len(refused)))
    spent_here = {pool: micros} if micros and pool else NOTHING_SPENT
    total = SliceUsage(*map(sum, zip(*usages, strict=True)))
    return PartBody(
        _in_order(output), _in_order(error), total, plus(kept.spent, spent_here), counts
    )


def _in_order(lines: Mapping[int, bytes]) -> bytes:
    return b"".join(lines[position] for position in sorted(lines))


def usage_of(body: bytes) -> SliceUsage:
    """What a successful answer says that it took."""
    try:
        usage = _BODY.decode(body).usage or _NO_USAGE
    except msgspec.DecodeError:
        usage = _NO_USAGE
    cached = usage.prompt_tokens_details or usage.input_tokens_details
    apart = usage.cache_read_input_tokens or 0
    reasoning = usage.completion_tokens_details or usage.output_tokens_details
    # By position: there is one for each row.
    return SliceUsage(
        1,
        0,
        (usage.prompt_tokens or usage.input_tokens or 0) + apart,
        (cached.cached_tokens if cached else apart) or 0,
        usage.completion_tokens or usage.output_tokens or 0,
        (reasoning.reasoning_tokens if reasoning else 0) or 0,
    )
