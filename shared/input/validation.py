"""Checks an input line by line: which lines are requests, and what is wrong with the others. Pure.

Error codes and messages are OpenAI's. All bad lines are reported together. A request that the
engine would refuse is a good line: it gets its error as a result, and the rest of the batch runs.
So does a bad line where the operator wants it.
"""

import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from shared.input.bad_lines import BadRows, bad_line
from shared.input.line_check import LineCheck
from shared.input.plain_lines import (
    MAX_PLAIN_LIST,
    PLAIN_PATHS,
    has_plain_constraint,
    plain_decoder,
)
from shared.input.problems import DECODE_ERRORS, Problems
from shared.input.refused_rows import RefusedRows
from shared.input.request_lines import BYTE_ORDER_MARK
from shared.input.rows import (
    BYTES_PER_TOKEN,
    MAX_COUNT,
    Row,
    count_or_none,
    predicted_output,
)
from shared.openai.bodies import Body, Refusal, read_body
from shared.openai.endpoints import ENDPOINTS, Endpoint, count_inputs
from shared.openai.ignored_fields import IgnoredFields
from shared.openai.image_rules import ImageRule
from shared.openai.media_tokens import may_have_media, media_prediction
from shared.openai.row_limits import int_of, sequences
from shared.openai.row_rules import DEFAULT_RULES, RowRules
from shared.openai.shapes import BatchError, BatchWarning

#: Lines that are decoded together: few enough to stay in the processor's cache.
_LINES_TOGETHER = 64
#: A larger number is no count of sequences that anything could take.
_MAX_SEQUENCES = 2**31 - 1


class Limits(NamedTuple):
    """What an input may hold."""

    rows: int = 50_000
    #: The texts of all requests together, if they ask for embeddings.
    embedding_inputs: int = 50_000
    line_bytes: int = 16 * 1024 * 1024
    problems: int = 1000
    custom_id_characters: int = 512

    def of_tenant(self, custom_id_characters: int | None) -> "Limits":
        """The same with what is set for a tenant; None if nothing is."""
        if custom_id_characters is None:
            return self
        return self._replace(custom_id_characters=custom_id_characters)

    def of_dataset(self, rows: int) -> "Limits":
        """The same for the input that a dataset was rendered into, which has limits of its own."""
        return self._replace(rows=rows, embedding_inputs=max(rows, self.embedding_inputs))


@dataclass
class InputCheck:
    """Takes the input's bytes, gives its rows, and collects its problems, in bounded memory."""

    endpoint: str
    #: By each model's name, the endpoints that it serves.
    models: Mapping[str, AbstractSet[str]]
    limits: Limits = field(default_factory=Limits)
    #: By model's name, what its operator lets requests ask for; `DEFAULT_RULES` for all others.
    rules: Mapping[str, RowRules] = field(default_factory=dict)
    #: Whether each line may name its own model and endpoint.
    is_mixed: bool = False
    #: Whether a bad line fails the batch; otherwise it is a row that gets an error, as long as
    #: there is a good one.
    is_strict: bool = True
    #: Lines that are requests, good or bad.
    rows: int = 0
    #: Where the next line begins in the object.
    offset: int = 0
    #: Predicted for all good rows.
    prompt_tokens: int = 0
    embedding_inputs: int = 0
    #: Rows that get an error for what their lines ask for.
    refused: int = 0
    _line_number: int = 0
    _rest: bytes = b""
    _is_skipping: bool = False

    def __post_init__(self) -> None:
        self._problems = Problems(self.limits.problems)
        #: Those of bad lines.
        self._bad = self._problems if self.is_strict else Problems(self.limits.problems)
        self._bad_rows = BadRows()
        self._ignored = IgnoredFields()
        self._refused = RefusedRows()
        self._line_check = LineCheck(
            self.endpoint,
            self.models,
            self.is_mixed,
            self.limits.custom_id_characters,
        )

    @property
    def problems(self) -> list[BatchError]:
        """Why a batch of this input may not start: the first problems."""
        return self._problems.listed

    @property
    def problem_count(self) -> int:
        return self._problems.count

    @property
    def warnings(self) -> list[BatchWarning]:
        """What the good rows ask for in vain."""
        return [
            BatchWarning(code="ignored_field", message=text) for text in self._ignored.messages()
        ]

    @property
    def refusals(self) -> list[BatchWarning]:
        """What the rows ask for that get an error for it."""
        return [
            BatchWarning(code="refused_request", message=text) for text in self._refused.messages()
        ]

    @property
    def model(self) -> str | None:
        """The one model of all lines; None before there is one, and if there are several."""
        models = self._line_check.models_seen
        return next(iter(models)) if len(models) == 1 else None

    def feed(self, chunk: bytes) -> list[Row]:
        """Take the next bytes of the input; returns the good rows that are complete."""
        lines = chunk.split(b"\n")
        lines[0] = self._rest + lines[0]
        self._rest = lines.pop()
        rows: list[Row] = []
        for first in range(0, len(lines), _LINES_TOGETHER):
            some = lines[first : first + _LINES_TOGETHER]
            if (plain := self._plain_rows(some)) is not None:
                rows += plain
            else:
                rows += [row for line in some if (row := self._row(line)) is not None]
        if len(self._rest) > self.limits.line_bytes:
            if not self._is_skipping:
                self._problems.add_long_line(self._line_number + 1, self.limits.line_bytes)
            # The line is refused already, so its bytes need not be kept.
            self._is_skipping = True
            self.offset += len(self._rest)
            self._rest = b""
        return rows if self.is_strict else self._bad_rows.placed(rows)

    def finish(self) -> list[Row]:
        """End the input; returns the last row, if any, and judges the file as a whole."""
        last = None
        if self._rest or self._is_skipping:
            last = self._row(self._rest, line_feed=0)
        rows = self._bad_rows.placed([last] if last else [])
        if not (self.is_strict or self._bad_rows.has_good_row):
            # Nothing says where the rows would go.
            self._problems.take(self._bad)
        if self._line_number == 0 or (self.rows == 0 and not self.problems):
            self._problems.add(
                "empty_file",
                None,
                None,
                "The input file is empty. Please ensure that the batch contains at least one "
                "request.",
            )
        if self.embedding_inputs > self.limits.embedding_inputs:
            self._problems.add(
                "too_many_inputs",
                None,
                "body.input",
                f"The requests have {self.embedding_inputs} inputs together; the limit is "
                f"{self.limits.embedding_inputs} for all requests of a batch of embeddings.",
            )
        self._problems.add_unlisted_count()
        return rows

    def _plain_rows(self, lines: list[bytes]) -> list[Row] | None:
        """What `_row` makes of the lines, if all are plainly right; several times as fast.

        All of them have to be for the endpoint and the model of the line before them. Otherwise
        this changes nothing and returns None.
        """
        if (
            self._line_check.last is None
            or self._line_check.last[0] not in PLAIN_PATHS
            or self._is_skipping
            or max(map(len, lines)) > self.limits.line_bytes
            or self.rows + len(lines) > self.limits.rows
        ):
            return None
        url, model = self._line_check.last
        try:
            for line in lines:
                # The decoder does not check strings that it was not asked to decode.
                if not line.isascii():
                    line.decode()
            decoder = plain_decoder(url, model, self.limits.custom_id_characters)
            requests = list(map(decoder.decode, lines))
        except DECODE_ERRORS:
            return None
        if any(_streams_or_is_unending(request.body, ENDPOINTS[url]) for request in requests):
            return None
        counts = self._plain_sequences(lines, requests)
        if counts is None:
            return None
        are_new = self._line_check.custom_ids.add_all([request.custom_id for request in requests])
        found = []
        number, end, endpoint = self._line_number, self.offset, ENDPOINTS[url]
        most = self.rules.get(model, DEFAULT_RULES).max_output
        cap = MAX_COUNT if most is None else most
        default = predicted_output(endpoint, endpoint.default_limit, 1, most=most)
        for line, request, is_new, count in zip(lines, requests, are_new, counts, strict=True):
            number, start, end = number + 1, end, end + len(line) + 1
            if not is_new:
                found += self._duplicate(number, start, end, line, request.custom_id)
                continue
            limit = _first_limit(request.body, endpoint)
            # As `predicted_output` does, without a call for each row.
            output = count * default if limit is None else min(count * min(limit, cap), MAX_COUNT)
            tokens = len(line) // BYTES_PER_TOKEN + output
            found.append(Row(number, start, end, tokens, output, limit, count, line, url, model))
        self._line_number, self.offset = number, end
        self.rows += len(lines)
        self.prompt_tokens += sum([row.tokens - row.output for row in found])
        if endpoint.counts_inputs:
            inputs = [getattr(request.body, endpoint.content) for request in requests]
            self.embedding_inputs += sum(map(count_inputs, inputs))
        return found

    def _plain_sequences(self, lines: list[bytes], requests: list[Any]) -> list[int] | None:
        """The sequences of plain lines; None if a limit of their model has to be looked at."""
        assert self._line_check.last is not None  # noqa: S101  # plain lines are like the last one
        url, model = self._line_check.last
        limits, endpoint = self.rules.get(model, DEFAULT_RULES).limits, ENDPOINTS[url]
        if min(limits.stop, limits.tokens) < MAX_PLAIN_LIST:
            return None
        if max(map(len, lines)) > limits.schema_bytes and any(
            has_plain_constraint(request.body) for request in requests
        ):
            return None
        if endpoint.prompt != "texts":
            # A plain line asks for one answer.
            return [1] * len(lines)
        counts = [count_inputs(getattr(request.body, endpoint.content)) for request in requests]
        return counts if max(counts) <= limits.sequences else None

    def _row(self, line: bytes, line_feed: int = 1) -> Row | None:
        """The row that any line is; None for a bad or empty one."""
        start, self.offset = self.offset, self.offset + len(line) + line_feed
        self._line_number += 1
        if self._is_skipping:
            self._is_skipping = False
            return None
        # As it came: `feed` judges the rest of a chunk before it sees a byte order mark or blanks.
        if len(line) > self.limits.line_bytes:
            self._problems.add_long_line(self._line_number, self.limits.line_bytes)
            return None
        if self._line_number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
        if not line or line.isspace():
            return None
        self.rows += 1
        if self.rows > self.limits.rows:
            if self.rows == self.limits.rows + 1:
                self._problems.add(
                    "too_many_tasks",
                    None,
                    None,
                    f"The input file has more than {self.limits.rows} requests, the limit.",
                )
            return None
        has_model = bool(self._line_check.models_seen)
        request = self._line_check.check(self._line_number, line)
        if request is None or self._line_check.problems.listed:
            if not (self.is_strict or has_model):
                self._line_check.forget_model()
            end = self.offset
            return self._bad_row(self._line_number, start, end, line, self._line_check.problems)
        return self._predicted(line, start, ENDPOINTS[request.url], request.body.model)

    def _duplicate(
        self, number: int, start: int, end: int, line: bytes, custom_id: str
    ) -> list[Row]:
        problems = Problems(1)
        problems.add_duplicate(number, custom_id)
        row = self._bad_row(number, start, end, line, problems)
        return [] if row is None else [row]

    def _bad_row(
        self, number: int, start: int, end: int, line: bytes, problems: Problems
    ) -> Row | None:
        """The row of a bad line, without endpoint and model; None where it fails the batch."""
        self._bad.list(*problems.listed)
        if self.is_strict:
            return None
        self.refused += 1
        self._refused.add_bad_line(problems.listed[0])
        bad = bad_line(line, problems.listed, max_custom_id=self.limits.custom_id_characters)
        return Row(number, start, end, 1, 0, None, 1, b"", "", "", bad_line=bad)

    def _predicted(self, line: bytes, start: int, endpoint: Endpoint, model: str) -> Row:
        """The row of a good line, with what the engine will make of its body."""
        raw = _body_of(line)
        rules = self.rules.get(model, DEFAULT_RULES)
        found: Body | Refusal | None = None
        if raw is not None:
            found = rules.refusal(endpoint.path, raw) or read_body(endpoint.body, raw)
        if isinstance(found, Refusal):
            self.refused += 1
            self._refused.add(self._line_number, found)
            refusal, limit, count, output = found, None, 1, 0
        else:
            self._ignored.add(self._line_number, rules.ignored(endpoint.path, raw or {}))
            refusal, count = None, min(sequences(endpoint, raw or {}), _MAX_SEQUENCES)
            limit, min_tokens, is_unending = _asked_for(endpoint, found or raw or {})
            output = predicted_output(
                endpoint,
                limit,
                count,
                most=rules.max_output,
                min_tokens=min_tokens,
                is_unending=is_unending,
            )
        prompt_tokens = _prompt_tokens(endpoint, line, raw or {}, rules.images)
        self.prompt_tokens += prompt_tokens
        if endpoint.counts_inputs:
            self.embedding_inputs += endpoint.prompts(raw or {})
        return Row(
            self._line_number,
            start,
            self.offset,
            prompt_tokens + output,
            output,
            limit,
            count,
            line,
            endpoint.path,
            model,
            refusal,
        )


def _prompt_tokens(
    endpoint: Endpoint, line: bytes, body: Mapping[str, Any], images: ImageRule | None
) -> int:
    size, tokens = len(line) + _repeated_bytes(endpoint, body), 0
    if may_have_media(line):
        media_bytes, tokens = media_prediction(body, images)
        size -= media_bytes
    return min(max(0, size) // BYTES_PER_TOKEN + tokens, MAX_COUNT)


def _repeated_bytes(endpoint: Endpoint, body: Mapping[str, Any]) -> int:
    """What the engine reads again and again of a line, but for the first time."""
    repeated = endpoint.repeated(body)
    if repeated is None:
        return 0
    try:
        size = len(json.dumps(repeated))
    except RecursionError:
        return 0  # the engine refuses it
    return min(size * (endpoint.prompts(body) - 1), MAX_COUNT)


def _body_of(line: bytes) -> dict[str, Any] | None:
    """The whole body as the engine reads it; None for a line that is nested too deeply."""
    try:
        body: dict[str, Any] = msgspec.json.decode(line)["body"]
    except DECODE_ERRORS:
        # Slower, and what the engine uses: it also reads numbers such as 1e999.
        try:
            body = json.loads(line)["body"]
        except (ValueError, RecursionError):
            return None
    return body


def _first_limit(body: Any, endpoint: Endpoint) -> int | None:
    for name in endpoint.output_limits:
        limit: int | None = getattr(body, name)
        if limit is not None:
            return limit
    return endpoint.default_limit


def _streams_or_is_unending(body: Any, endpoint: Endpoint) -> bool:
    """Whether an answer to this decoded body is to be a stream, or ends only with the context."""
    if body.stream is True:
        return True
    return getattr(body, "ignore_eos", False) and _first_limit(body, endpoint) is None


def _asked_for(endpoint: Endpoint, body: Body | dict[str, Any]) -> tuple[int | None, int, bool]:
    """What a request says of one answer: the tokens it allows, the fewest, and if it ends there."""

    def value(name: str) -> object:
        return body.get(name) if isinstance(body, dict) else getattr(body, name, None)

    limits = (count_or_none(value(name)) for name in endpoint.output_limits)
    limit = next((limit for limit in limits if limit is not None), endpoint.default_limit)
    return limit, int_of(value("min_tokens")), bool(value("ignore_eos"))
