"""The lines of a batch's input, as bytes. Pure."""

import msgspec

#: An input may begin with it.
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class _CustomId(msgspec.Struct):
    custom_id: str


def split(body: bytes) -> list[bytes]:
    """The request lines in some bytes of an input: separated by LF only, blank ones left out.

    JSON strings may hold U+2028 and its like raw, which `splitlines` would cut at.
    """
    lines = body.removeprefix(BYTE_ORDER_MARK).split(b"\n")
    return [line for line in lines if line.strip()]


def custom_id_of(line: bytes) -> str:
    """What the client calls the request."""
    return msgspec.json.decode(line, type=_CustomId).custom_id
