"""The lines of a batch's input, as bytes. Pure."""

import json

import msgspec

#: An input may begin with it.
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class _CustomId(msgspec.Struct):
    custom_id: str | None


_LINE = msgspec.json.Decoder(_CustomId)


def split(body: bytes) -> list[bytes]:
    """The request lines in some bytes of an input: separated by LF only, blank ones left out.

    JSON strings may hold U+2028 and its like raw, which `splitlines` would cut at.
    """
    lines = body.removeprefix(BYTE_ORDER_MARK).split(b"\n")
    return [line for line in lines if line.strip()]


def custom_id_of(line: bytes) -> str | None:
    """What the client calls the request; None for an error in place of a line without a name."""
    try:
        return _LINE.decode(line).custom_id
    except msgspec.DecodeError:
        return _LINE.decode(mended(line)).custom_id


def mended(line: bytes) -> bytes:
    """The line with `?` for each half of a surrogate pair that stands alone.

    JSON can escape such a half, which no encoding can hold, and some writers cut texts in the
    middle of a pair. A line that is not JSON, or whose `custom_id` has one, stays as it is.
    """
    try:
        value = json.loads(line.decode())  # bytes would be allowed a byte order mark
        if isinstance(value, dict):
            str(value.get("custom_id")).encode()
    except (ValueError, RecursionError):
        return line
    return json.dumps(value, ensure_ascii=False).encode(errors="replace")
