"""A multipart form with one file, parsed while it arrives. Knows neither HTTP nor storage.

The file may come before other fields, so its bytes are passed on before all fields are known.
"""

from collections.abc import Iterator, Mapping, Sequence
from email.errors import MessageError

from streaming_form_data import ParseFailedException, StreamingFormDataParser
from streaming_form_data.parser import parse_content_boundary
from streaming_form_data.targets import BaseTarget

from gateway.fields import missing
from shared.errors import InvalidInputError, TooLargeError

#: The limit of a form besides its file, which bounds the memory for headers and fields.
MAX_FORM_BYTES = 256 * 1024
#: The limit of its headers, the lines between parts and the form's content type included. The
#: `email` package reads each of them in a time that grows with the square of its length.
MAX_HEADER_BYTES = 4096
#: What is fed at once where there may be headers.
_PIECE_BYTES = 512
_MAX_OTHERS = 8
_NOT_A_FORM = (
    "We could not parse your multipart form. Let an HTTP library build the body: it must be "
    "multipart/form-data, and the content type must name the boundary."
)
#: The `email` package reads part headers, and raises any of these for broken ones.
_PARSER_ERRORS = (ParseFailedException, MessageError, ValueError, LookupError, AttributeError)


class Form:
    """One form: feed it the body, take the file's bytes, and read the other fields at the end."""

    def __init__(
        self, content_type: str, *, file_field: str, fields: Sequence[str], max_file_bytes: int
    ) -> None:
        self._file_field = file_field
        self._max_file_bytes = max_file_bytes
        self._fed_bytes = 0
        self._file = _Part()
        self._fields: Mapping[str, _Part] = {name: _Part() for name in fields}
        #: The first names of fields that are neither.
        self.others: list[str] = []
        self._unknown = _Size()
        #: The last bytes so far: the end of the file may have begun in them.
        self._tail = b""
        self._is_after_file = False
        if len(content_type) > MAX_HEADER_BYTES:
            raise InvalidInputError(_NOT_A_FORM)
        try:
            self._end_of_file = b"\r\n--" + parse_content_boundary({"content-type": content_type})
            self._parser = StreamingFormDataParser({"content-type": content_type})
        except _PARSER_ERRORS as error:
            raise InvalidInputError(_NOT_A_FORM) from error
        for name, part in ((file_field, self._file), *self._fields.items()):
            self._parser.register(name, part)
        self._parser.register("", self._unknown, matches=self._is_another)

    @property
    def filename(self) -> str:
        """As the client named it; SDKs call bare bytes `upload`, and so do we."""
        return self._file.multipart_filename or "upload"

    @property
    def has_file(self) -> bool:
        """Whether the file has begun."""
        return self._file.beginnings > 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take the next bytes of the body; returns the file's among them.

        Raises InvalidInputError for a broken form or a file over the limit, and TooLargeError for
        one that holds too much besides the file.
        """
        for piece in self._pieces(chunk):
            self._fed_bytes += len(piece)
            try:
                self._parser.data_received(piece)
            except _PARSER_ERRORS as error:
                raise InvalidInputError(_NOT_A_FORM) from error
            self._require_bounds()
        return self._file.take()

    def finish(self) -> None:
        """End the form. Raises InvalidInputError if there is no whole file."""
        if not self.has_file:
            raise missing(self._file_field)
        if not self._file.is_whole:
            raise InvalidInputError(f"{_NOT_A_FORM} This one ends in the middle of the file.")

    def _pieces(self, chunk: bytes) -> Iterator[bytes]:
        """The file's bytes as they are, and all others in small pieces."""
        while chunk:
            size = _PIECE_BYTES
            if self.has_file and not self._is_after_file:
                end = (self._tail + chunk).find(self._end_of_file)
                self._is_after_file = self._file.is_whole or end >= 0
                if not self._is_after_file:
                    size = len(chunk)
                elif end > len(self._tail):
                    size = end - len(self._tail)
            piece, chunk = chunk[:size], chunk[size:]
            # With these and the next byte, either there is an end of the file, or it has been.
            self._tail = (self._tail + piece)[-1 - len(self._end_of_file) :]
            yield piece

    def _require_bounds(self) -> None:
        if self._file.beginnings > 1:
            raise InvalidInputError(
                f"The form has more than one part '{self._file_field}'. Send one file per call.",
                param=self._file_field,
            )
        if self._file.size > self._max_file_bytes:
            raise file_too_large(self._max_file_bytes, self._file_field)
        besides = self._fed_bytes - self._file.size
        if besides > MAX_FORM_BYTES:
            raise TooLargeError(
                f"The form is too large. Send at most {MAX_FORM_BYTES} bytes besides the file."
            )
        values = self._unknown.size + sum(part.size for part in self._fields.values())
        if besides - values > MAX_HEADER_BYTES:
            raise TooLargeError(
                "The headers of the form's parts are too large. "
                f"Send at most {MAX_HEADER_BYTES} bytes of them."
            )

    def _is_another(self, _: str, name: str) -> bool:
        is_known = name == self._file_field or name in self._fields
        if not is_known and name not in self.others and len(self.others) < _MAX_OTHERS:
            self.others.append(name)
        return not is_known

    def fields(self) -> dict[str, str]:
        """The fields that have arrived in full."""
        return {
            name: b"".join(part.chunks).decode(errors="replace")
            for name, part in self._fields.items()
            if part.is_whole
        }


def file_too_large(max_bytes: int, field: str) -> InvalidInputError:
    """The error for a file over the limit. OpenAI answers 400 here, not 413."""
    return InvalidInputError(f"File is too large. '{field}' may have at most {max_bytes} bytes.")


class _Size(BaseTarget):  # type: ignore[misc]  # it has no types
    """How large the values of fields are that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def on_data_received(self, chunk: bytes) -> None:
        self.size += len(chunk)


class _Part(_Size):
    """One part of the form, kept in the chunks in which it came."""

    def __init__(self) -> None:
        super().__init__()
        self.beginnings = 0
        self.chunks: list[bytes] = []
        self.is_whole = False

    def on_start(self) -> None:
        self.beginnings += 1
        self.chunks, self.is_whole = [], False

    def on_data_received(self, chunk: bytes) -> None:
        super().on_data_received(chunk)
        self.chunks.append(chunk)

    def on_finish(self) -> None:
        self.is_whole = True

    def take(self) -> list[bytes]:
        """The chunks that came since the last call."""
        taken, self.chunks = self.chunks, []
        return taken
