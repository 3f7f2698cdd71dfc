"""Checks an input file line by line and predicts each row's tokens. Pure: bytes in, values out.

Error codes and messages are OpenAI's (the contract's section 3.1), all bad lines reported together.
"""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from dispatcher.slicing import Slicer
from shared.openai import BatchError
from shared.slices import Slice

#: Bytes of JSON that stand for about one token.
_BYTES_PER_TOKEN = 4
#: Predicted output where a request sets no limit.
_DEFAULT_OUTPUT_TOKENS = 256
#: Characters of a client's own words in a message.
_MOST_QUOTED = 80
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
#: The field without which a request of the endpoint cannot run.
_CONTENT = {
    "/v1/chat/completions": "messages",
    "/v1/completions": "prompt",
    "/v1/embeddings": "input",
    "/v1/responses": "input",
}


class _Body(msgspec.Struct):
    model: Any = msgspec.UNSET
    stream: Any = False
    n: Any = 1
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    messages: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    prompt: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Line(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: _Body


class Limits(NamedTuple):
    """What an input may hold."""

    rows: int = 50_000
    #: Of all requests together, where they are embeddings.
    embedding_inputs: int = 50_000
    line_bytes: int = 16 * 1024 * 1024
    problems: int = 1000


@dataclass
class InputCheck:
    """Feed it the input's bytes; it collects slices, counts and problems, in bounded memory."""

    endpoint: str
    #: Model name to the endpoints it serves.
    models: Mapping[str, AbstractSet[str]]
    slicer: Slicer
    limits: Limits = field(default_factory=Limits)
    model: str | None = None
    rows: int = 0
    #: Predicted, of all rows.
    prompt_tokens: int = 0
    embedding_inputs: int = 0
    problems: list[BatchError] = field(default_factory=list)
    problem_count: int = 0
    _line_number: int = 0
    _offset: int = 0
    _rest: bytes = b""
    _is_skipping: bool = False
    _seen: set[str] = field(default_factory=set)
    _decoder: msgspec.json.Decoder[_Line] = field(
        default_factory=lambda: msgspec.json.Decoder(_Line)
    )

    def feed(self, chunk: bytes) -> Iterator[Slice]:
        """Take the next bytes of the input; yields slices that are complete."""
        whole = self._rest + chunk
        *lines, self._rest = whole.split(b"\n")
        for line in lines:
            yield from self._line(line, len(line) + 1)
        if len(self._rest) > self.limits.line_bytes:
            if not self._is_skipping:
                self._report_long_line(self._line_number + 1)
            # The line is refused already; its bytes need not be kept.
            self._is_skipping = True
            self._offset += len(self._rest)
            self._rest = b""

    def finish(self) -> Iterator[Slice]:
        """The input has ended; yields the last slices and judges the file as a whole."""
        if self._rest:
            yield from self._line(self._rest, len(self._rest))
        if (last := self.slicer.finish()) is not None:
            yield last
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

    def _line(self, line: bytes, width: int) -> Iterator[Slice]:
        start, self._offset = self._offset, self._offset + width
        self._line_number += 1
        if self._is_skipping:
            self._is_skipping = False
            return
        if self._line_number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line.strip():
            return
        if len(line) > self.limits.line_bytes:
            self._report_long_line(self._line_number)
            return
        self.rows += 1
        if self.rows > self.limits.rows:
            if self.rows == self.limits.rows + 1:
                self._report(
                    "too_many_tasks",
                    None,
                    None,
                    f"The input file has more than {self.limits.rows} requests, the limit.",
                )
            return
        tokens = self._check(line)
        full = self.slicer.add(start, start + width, tokens)
        if full is not None:
            yield full

    def _check(self, line: bytes) -> int:
        """Report the row's problems; returns its predicted tokens."""
        try:
            request = self._decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._explain(line)
            return 0
        number, body = self._line_number, request.body
        if not request.custom_id:
            self._report_missing(number, "custom_id")
        elif request.custom_id in self._seen:
            self._report(
                "duplicate_custom_id",
                number,
                "custom_id",
                f"The custom_id '{_short(request.custom_id)}' for this request is a duplicate of "
                "another request. The custom_id parameter must be unique for each request in a "
                "batch.",
            )
        self._seen.add(request.custom_id)
        if request.method != "POST":
            self._report(
                "invalid_method",
                number,
                "method",
                f"Invalid value: '{_short(request.method)}'. Supported values are: 'POST'.",
            )
        if request.url != self.endpoint:
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
        self._check_model(body.model)
        content = _CONTENT[self.endpoint]
        if getattr(body, content) is msgspec.UNSET:
            self._report(
                "invalid_request",
                number,
                f"body.{content}",
                f"{content.capitalize()} parameter is required.",
            )
        elif self.endpoint == "/v1/embeddings":
            self.embedding_inputs += _count_inputs(body.input)
        prompt_tokens = len(line) // _BYTES_PER_TOKEN
        self.prompt_tokens += prompt_tokens
        return prompt_tokens + self._output_tokens(body)

    def _check_model(self, model: object) -> None:
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
        elif self.endpoint not in self.models[model]:
            self._report(
                "model_not_found",
                number,
                "body.model",
                f"The model '{model}' does not serve {self.endpoint}.",
            )
        elif self.model is None:
            self.model = model
        elif model != self.model:
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
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
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

    def _output_tokens(self, body: _Body) -> int:
        if self.endpoint == "/v1/embeddings":
            return 0
        limits = (body.max_completion_tokens, body.max_tokens, body.max_output_tokens)
        limit = next((x for x in limits if _is_count(x)), _DEFAULT_OUTPUT_TOKENS)
        choices: int = body.n if _is_count(body.n) else 1
        return int(limit) * choices

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


def _count_inputs(value: msgspec.Raw | msgspec.UnsetType) -> int:
    """How many texts an embeddings request has: a text, a list of them, or of lists of tokens."""
    if value is msgspec.UNSET:
        return 0
    try:
        parts = msgspec.json.decode(value, type=list[msgspec.Raw])
    except msgspec.DecodeError:
        return 1
    return len(parts) if parts and bytes(parts[0])[:1] in (b'"', b"[") else 1


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
