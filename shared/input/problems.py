"""Collects what is wrong with an input, in OpenAI's words and in bounded memory. Pure."""

from typing import Literal

import msgspec

from shared.openai.shapes import BatchError

#: What decoding a line can raise, whatever the line holds.
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
#: The maximum characters of a client's own text that a message quotes.
_MAX_QUOTED = 80
_KINDS: dict[type, str] = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a decimal",
    list: "an array",
    dict: "an object",
}


class Problems:
    """Lists the first problems of an input, and counts all of them."""

    def __init__(self, max_listed: int) -> None:
        self._max_listed = max_listed
        self.listed: list[BatchError] = []
        self.count = 0

    def add(self, code: str, line: int | None, param: str | None, message: str) -> None:
        self.list(BatchError(code=code, line=line, param=param, message=message))

    def list(self, *problems: BatchError) -> None:
        """Add these."""
        self.count += len(problems)
        self.listed += problems[: max(0, self._max_listed - len(self.listed))]

    def take(self, others: "Problems") -> None:
        """Add those that others lists, and the number of those that it does not."""
        self.list(*others.listed)
        self.count += others.count - len(others.listed)

    def add_unlisted_count(self) -> None:
        """Say how many problems were left out; called once, after the last problem."""
        if self.count > len(self.listed):
            more = self.count - len(self.listed)
            message = f"{more} more problems were found and are not listed."
            self.listed.append(BatchError(code="too_many_errors", message=message))

    def add_duplicate(self, line: int, custom_id: str) -> None:
        self.add(
            "duplicate_custom_id",
            line,
            "custom_id",
            f"The custom_id '{shortened(custom_id)}' for this request is a duplicate of another "
            "request. The custom_id parameter must be unique for each request in a batch.",
        )

    def add_long_name(self, line: int, custom_id: str, most: int) -> None:
        self.add(
            "string_above_max_length",
            line,
            "custom_id",
            f"Invalid 'custom_id': string too long. Expected a string with maximum length {most}, "
            f"but got a string with length {len(custom_id)} instead.",
        )

    def add_missing(self, line: int, name: str) -> None:
        self.add("missing_required_parameter", line, name, f"Missing required parameter: '{name}'.")

    def add_long_line(self, line: int, max_bytes: int) -> None:
        self.add("invalid_request", line, None, f"This line is longer than {max_bytes} bytes.")

    def add_unsupported(
        self, line: int, param: str, value: str, supported: tuple[str, ...]
    ) -> None:
        choices = ", ".join(repr(one) for one in supported)
        self.add(
            f"invalid_{param}",
            line,
            param,
            f"Invalid value: '{shortened(value)}'. Supported values are: {choices}.",
        )

    def add_malformed(self, number: int, line: bytes) -> None:
        """Say why a line is not a request at all."""
        try:
            value = msgspec.json.decode(line)
        except DECODE_ERRORS:
            value = None
        if not isinstance(value, dict):
            message = "This line is not parseable as valid JSON."
            self.add("invalid_json_line", number, None, message)
            return
        for name, kind in (("custom_id", str), ("method", str), ("url", str), ("body", dict)):
            if name not in value:
                self.add_missing(number, name)
            elif not isinstance(value[name], kind):
                self.add(
                    "invalid_type",
                    number,
                    name,
                    f"Invalid type for '{name}': expected {_KINDS[kind]}, but got "
                    f"{_KINDS.get(type(value[name]), 'null')} instead.",
                )


def unreadable(
    file_id: str, *, tenant: str, why: Literal["changed", "forbidden", "missing", "unavailable"]
) -> BatchError:
    """Why the object of an input file could not be read."""
    code, message = {
        "changed": ("input_changed", f"The file {file_id} was changed after the batch was made."),
        "forbidden": ("input_no_permissions", f"The object of file {file_id} may not be read."),
        "missing": (
            "invalid_request",
            f"Cannot find file {file_id}, or organization {tenant} does not have access to it.",
        ),
        "unavailable": (
            "input_unavailable",
            f"S3 fails to answer for the object of file {file_id}, though it answers for others. "
            "Write the object again and create a new batch.",
        ),
    }[why]
    return BatchError(code=code, param="file_id", message=message)


def shortened(text: str) -> str:
    """A client's own text, as much of it as a message quotes."""
    return text if len(text) <= _MAX_QUOTED else text[: _MAX_QUOTED - 3] + "..."
