"""Checks an input file line by line and predicts each row's tokens. Pure: bytes in, values out.

Error codes and messages are OpenAI's. All bad lines are reported together.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from shared.input.name_set import Seen
from shared.input.request_lines import BYTE_ORDER_MARK
from shared.openai.endpoints import ENDPOINTS, Endpoint
from shared.openai.shapes import BatchError

#: Bytes of JSON that stand for about one token.
_BYTES_PER_TOKEN = 4
#: Predicted output where a request sets no limit.
_DEFAULT_OUTPUT_TOKENS = 256
#: Lines that are looked at together: few enough to stay in the processor's cache.
_TOGETHER = 64
#: Characters of a client's own words in a message.
_MOST_QUOTED = 80
_BRACKET, _QUOTE = b'["'
#: What decoding a line raises, whatever is in it.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_CONTENTS = {endpoint.content for endpoint in ENDPOINTS.values()}
_OUTPUT_LIMITS = {name for endpoint in ENDPOINTS.values() for name in endpoint.output_limits}
#: What the check looks at in a body, whatever it holds.
_Body: Any = msgspec.defstruct(
    "_Body",
    [
        ("model", Any, msgspec.UNSET),
        ("stream", Any, False),
        ("n", Any, 1),
        *((name, Any, None) for name in sorted(_OUTPUT_LIMITS)),
        *((name, msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for name in sorted(_CONTENTS)),
    ],
)


_Line: Any = msgspec.defstruct(
    "_Line", [("custom_id", str), ("method", str), ("url", str), ("body", _Body)]
)


_Count = Annotated[int, msgspec.Meta(gt=0, lt=2**31)]


@lru_cache(maxsize=128)
def _flawless(endpoint: str, model: str) -> msgspec.json.Decoder[Any]:
    """Decodes a line that needs no more than a look at its custom_id; all the rest is checked in C.

    What it does not take is not wrong yet: it is looked at again, field by field.
    """
    body = msgspec.defstruct(
        "_FlawlessBody",
        [
            ("model", Literal[model]),
            (ENDPOINTS[endpoint].content, msgspec.Raw),
            ("stream", bool | None, None),
            ("n", _Count, 1),
            *((name, _Count | None, None) for name in ENDPOINTS[endpoint].output_limits),
        ],
        gc=False,
    )
    line = msgspec.defstruct(
        "_FlawlessLine",
        [
            ("custom_id", Annotated[str, msgspec.Meta(min_length=1)]),
            ("method", Literal["POST"]),
            ("url", Literal[endpoint]),
            ("body", body),
        ],
        gc=False,
    )
    return msgspec.json.Decoder(line)


class Row(msgspec.Struct, gc=False):
    """A good request: bytes [start, end) of the input's object, its line feed included.

    `tokens` are predicted, prompt and output together, of which `output` are output: what the
    request asks for at most, or a guess where `limit`, its own limit of one answer, is None.
    """

    number: int
    start: int
    end: int
    tokens: int
    output: int
    limit: int | None
    line: bytes
    url: str
    model: str


class Limits(NamedTuple):
    """What an input may hold."""

    rows: int = 50_000
    #: Of all requests together, where they are embeddings.
    embedding_inputs: int = 50_000
    line_bytes: int = 16 * 1024 * 1024
    problems: int = 1000


def unreadable(
    file_id: str, *, tenant: str, why: Literal["changed", "forbidden", "missing"]
) -> BatchError:
    """Why an input could not be read."""
    code, message = {
        "changed": ("input_changed", f"The file {file_id} was changed after the batch was made."),
        "forbidden": ("input_no_permissions", f"The object of file {file_id} may not be read."),
        "missing": (
            "invalid_request",
            f"Cannot find file {file_id}, or organization {tenant} does not have access to it.",
        ),
    }[why]
    return BatchError(code=code, param="file_id", message=message)


@dataclass
class InputCheck:
    """Feed it the input's bytes; it gives rows and collects problems, in bounded memory."""

    endpoint: str
    #: Model name to the endpoints it serves.
    models: Mapping[str, AbstractSet[str]]
    limits: Limits = field(default_factory=Limits)
    #: Whether each line may name a model and an endpoint of its own.
    is_mixed: bool = False
    rows: int = 0
    #: Where the next line begins in the object.
    offset: int = 0
    #: Predicted, of all rows.
    prompt_tokens: int = 0
    embedding_inputs: int = 0
    problems: list[BatchError] = field(default_factory=list)
    problem_count: int = 0
    #: Endpoint and model of the last line that named both rightly.
    _last: tuple[str, str] | None = None
    _models_seen: set[str] = field(default_factory=set)
    _line_number: int = 0
    _rest: bytes = b""
    _is_skipping: bool = False
    _seen: Seen = field(default_factory=Seen)
    _decoder: msgspec.json.Decoder[Any] = field(default_factory=lambda: msgspec.json.Decoder(_Line))

    @property
    def model(self) -> str | None:
        """The one model of all lines; None before there is one, and for several."""
        return next(iter(self._models_seen)) if len(self._models_seen) == 1 else None

    def feed(self, chunk: bytes) -> list[Row]:
        """Take the next bytes of the input; returns the good rows that are complete."""
        lines = chunk.split(b"\n")
        lines[0] = self._rest + lines[0]
        self._rest = lines.pop()
        rows: list[Row] = []
        for first in range(0, len(lines), _TOGETHER):
            some = lines[first : first + _TOGETHER]
            if (flawless := self._flawless_lines(some)) is not None:
                rows += flawless
            else:
                rows += [row for line in some if (row := self._line(line)) is not None]
        if len(self._rest) > self.limits.line_bytes:
            if not self._is_skipping:
                self._report_long_line(self._line_number + 1)
            # The line is refused already; its bytes need not be kept.
            self._is_skipping = True
            self.offset += len(self._rest)
            self._rest = b""
        return rows

    def finish(self) -> list[Row]:
        """The input has ended; returns the last row, if any, and judges the file as a whole."""
        last = None
        if self._rest or self._is_skipping:
            last = self._line(self._rest, line_feed=0)
        if self._line_number == 0 or (self.rows == 0 and not self.problems):
            self._report(
                "empty_file",
                None,
                None,
                "The input file is empty. Please ensure that the batch contains at least one "
                "request.",
            )
        if self.embedding_inputs > self.limits.embedding_inputs:
            self._report(
                "too_many_inputs",
                None,
                "body.input",
                f"The requests have {self.embedding_inputs} inputs together; the limit is "
                f"{self.limits.embedding_inputs} for all requests of a batch of embeddings.",
            )
        if self.problem_count > len(self.problems):
            more = self.problem_count - len(self.problems)
            self.problems.append(
                BatchError(
                    code="too_many_errors",
                    message=f"{more} more problems were found and are not listed.",
                )
            )
        return [] if last is None else [last]

    def _line(self, line: bytes, line_feed: int = 1) -> Row | None:
        start, self.offset = self.offset, self.offset + len(line) + line_feed
        self._line_number += 1
        if self._is_skipping:
            self._is_skipping = False
            return None
        # As it came: the rest of a chunk is judged before its byte order mark and blanks are seen.
        if len(line) > self.limits.line_bytes:
            self._report_long_line(self._line_number)
            return None
        if self._line_number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
        if not line or line.isspace():
            return None
        self.rows += 1
        if self.rows > self.limits.rows:
            if self.rows == self.limits.rows + 1:
                self._report(
                    "too_many_tasks",
                    None,
                    None,
                    f"The input file has more than {self.limits.rows} requests, the limit.",
                )
            return None
        before = self.problem_count
        request = self._check(line)
        if request is None or self.problem_count > before:
            return None
        body, endpoint = request.body, ENDPOINTS[request.url]
        limit = _limit_of(body, endpoint)
        choices: int = body.n if _is_count(body.n) else 1
        output = choices * (limit or _DEFAULT_OUTPUT_TOKENS) if endpoint.has_output else 0
        tokens = len(line) // _BYTES_PER_TOKEN + output
        self.prompt_tokens += tokens - output
        if endpoint.counts_inputs:
            self.embedding_inputs += _count_inputs(getattr(body, endpoint.content))
        url, model = request.url, body.model
        return Row(self._line_number, start, self.offset, tokens, output, limit, line, url, model)

    def _flawless_lines(self, lines: list[bytes]) -> list[Row] | None:
        """What `_line` makes of the lines, in a third of the time, if all are flawless.

        All have to be for the endpoint and the model of the line before them. Changes nothing and
        returns None otherwise.
        """
        if (
            self._last is None
            or self._is_skipping
            or max(map(len, lines)) > self.limits.line_bytes
            or self.rows + len(lines) > self.limits.rows
        ):
            return None
        url, model = self._last
        try:
            for line in lines:
                # The decoder does not look into what nobody asked for.
                if not line.isascii():
                    line.decode()
            requests = list(map(_flawless(url, model).decode, lines))
        except _UNREADABLE:
            return None
        if True in [request.body.stream for request in requests]:
            return None
        are_new = self._seen.add_all([request.custom_id for request in requests])
        found = []
        number, end, endpoint = self._line_number, self.offset, ENDPOINTS[url]
        for line, request, is_new in zip(lines, requests, are_new, strict=True):
            body, size = request.body, len(line)
            limit = _limit_of(body, endpoint)
            output = body.n * (limit or _DEFAULT_OUTPUT_TOKENS) if endpoint.has_output else 0
            number, start, end = number + 1, end, end + size + 1
            tokens = size // _BYTES_PER_TOKEN + output
            if is_new:
                found.append(Row(number, start, end, tokens, output, limit, line, url, model))
            else:
                self._report_duplicate(number, request.custom_id)
        self._line_number, self.offset = number, end
        self.rows += len(lines)
        self.prompt_tokens += sum([row.tokens - row.output for row in found])
        if endpoint.counts_inputs:
            self.embedding_inputs += sum(
                [_count_inputs(getattr(one.body, endpoint.content)) for one in requests]
            )
        return found

    def _check(self, line: bytes) -> Any | None:
        """Report all problems of the row; returns what it holds if it is a request."""
        try:
            line.decode()
            request = self._decoder.decode(line)
        except _UNREADABLE:
            self._explain(line)
            return None
        number, body = self._line_number, request.body
        if not request.custom_id:
            self._report_missing(number, "custom_id")
        elif not self._seen.add(request.custom_id):
            self._report_duplicate(number, request.custom_id)
        if request.method != "POST":
            self._report(
                "invalid_method",
                number,
                "method",
                f"Invalid value: '{_short(request.method)}'. Supported values are: 'POST'.",
            )
        url = request.url if self.is_mixed else self.endpoint
        if url not in ENDPOINTS:
            self._report(
                "invalid_url",
                number,
                "url",
                f"Invalid value: '{_short(url)}'. Supported values are: "
                f"{', '.join(repr(one) for one in ENDPOINTS)}.",
            )
        elif request.url != url:
            self._report(
                "invalid_url",
                number,
                "url",
                "The URL provided for this request does not match the batch endpoint.",
            )
        if body.stream not in (False, None):
            self._report(
                "streaming_unsupported",
                number,
                "body.stream",
                "Chat Completions: Streaming is not supported in the Batch API.",
            )
        self._check_model(body.model, url)
        endpoint = ENDPOINTS.get(url)
        if endpoint and getattr(body, endpoint.content) is msgspec.UNSET:
            self._report(
                "invalid_request",
                number,
                f"body.{endpoint.content}",
                f"{endpoint.content.capitalize()} parameter is required.",
            )
        return request

    def _check_model(self, model: object, url: str) -> None:
        number = self._line_number
        if not isinstance(model, str) or not model:
            self._report("invalid_request", number, "body.model", "Model parameter is required.")
        elif model not in self.models:
            self._report(
                "model_not_found",
                number,
                "body.model",
                f"The provided model '{_short(model)}' is not supported by the Batch API.",
            )
        elif url not in ENDPOINTS:
            # Reported already.
            return
        elif url not in self.models[model]:
            self._report(
                "model_not_found",
                number,
                "body.model",
                f"The model '{model}' does not serve {url}.",
            )
        elif self.is_mixed or model in self._models_seen or not self._models_seen:
            self._models_seen.add(model)
            self._last = url, model
        else:
            self._report(
                "mismatched_model",
                number,
                "body.model",
                f"The model '{model}' for this request does not match the rest of the batch. Each "
                "batch must contain requests for a single model.",
            )

    def _explain(self, line: bytes) -> None:
        """Say what is wrong with a line that is no request."""
        number = self._line_number
        try:
            value = msgspec.json.decode(line)
        except _UNREADABLE:
            value = None
        if not isinstance(value, dict):
            self._report(
                "invalid_json_line",
                number,
                None,
                "This line is not parseable as valid JSON.",
            )
            return
        for name, kind in (
            ("custom_id", str),
            ("method", str),
            ("url", str),
            ("body", dict),
        ):
            if name not in value:
                self._report_missing(number, name)
            elif not isinstance(value[name], kind):
                wanted = "an object" if kind is dict else "a string"
                self._report(
                    "invalid_type",
                    number,
                    name,
                    f"Invalid type for '{name}': expected {wanted}, but got "
                    f"{_kind(value[name])} instead.",
                )

    def _report_duplicate(self, number: int, custom_id: str) -> None:
        self._report(
            "duplicate_custom_id",
            number,
            "custom_id",
            f"The custom_id '{_short(custom_id)}' for this request is a duplicate of another "
            "request. The custom_id parameter must be unique for each request in a batch.",
        )

    def _report_missing(self, number: int, name: str) -> None:
        self._report(
            "missing_required_parameter",
            number,
            name,
            f"Missing required parameter: '{name}'.",
        )

    def _report_long_line(self, number: int) -> None:
        self._report(
            "invalid_request",
            number,
            None,
            f"This line is longer than {self.limits.line_bytes} bytes.",
        )

    def _report(self, code: str, line: int | None, param: str | None, message: str) -> None:
        self.problem_count += 1
        if len(self.problems) < self.limits.problems:
            self.problems.append(BatchError(code=code, line=line, param=param, message=message))


def _limit_of(body: Any, endpoint: Endpoint) -> int | None:
    """The tokens of one answer that the request asks for at most."""
    for name in endpoint.output_limits:
        limit = getattr(body, name)
        if _is_count(limit):
            return int(limit)
    return None


def _count_inputs(value: msgspec.Raw) -> int:
    """How many texts an embeddings request has: a text, a list of them, or of lists of tokens."""
    if memoryview(value)[0] != _BRACKET:
        return 1
    try:
        parts = msgspec.json.decode(value, type=list[msgspec.Raw])
    except _UNREADABLE:
        return 1
    return len(parts) if parts and memoryview(parts[0])[0] in (_QUOTE, _BRACKET) else 1


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31


def _short(text: str) -> str:
    return text if len(text) <= _MOST_QUOTED else text[: _MOST_QUOTED - 3] + "..."


def _kind(value: object) -> str:
    kinds: dict[type, str] = {
        str: "a string",
        bool: "a boolean",
        int: "an integer",
        float: "a decimal",
        list: "an array",
        dict: "an object",
    }
    return kinds.get(type(value), "null")
