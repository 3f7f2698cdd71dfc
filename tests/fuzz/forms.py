"""Multipart forms at random, good and bad, and what must hold of the form parser for each."""

import random

from gateway.form import Form
from shared.errors import InvalidInputError, TooLargeError

_BOUNDARY = "b0undary"
_FIELDS = ("purpose", "expires")
_MAX_BYTES = 2000
#: Bytes of which forms are made, so that near misses are frequent.
_PIECES = (
    b"\r", b"\n", b"\r\n", b"-", b"--", b"\r\n--", b"\r\n--b0unda", b"--b0undary",
    b"\r\n--b0undary", b"\r\n--b0undary--", b"x", b"\x00", b"\xff", b": ", b"; ", b'"', b"=",
    b"Content-Disposition: form-data; name=", b'filename="a"', b"filename*=UTF-8''%ff",
)  # fmt: skip


def check_a_form(dice: random.Random) -> None:
    """Make a form, good or broken, and feed it in pieces."""
    content = _content(dice)
    fields = {name: _value(dice) for name in _FIELDS if dice.random() < 0.7}
    body = _body(dice, content, fields)
    if dice.random() < 0.4:
        received, form = _fed(dice, body)
        form.finish()
        assert received == content
        assert form.fields() == fields
        return
    broken = _broken(dice, body)
    try:
        received, form = _fed(dice, broken)
        form.finish()
    except (InvalidInputError, TooLargeError):
        return
    assert form.has_file
    assert len(received) <= min(len(broken), _MAX_BYTES)
    assert set(form.fields()) <= set(_FIELDS)
    assert isinstance(form.filename, str)


def _fed(dice: random.Random, body: bytes) -> tuple[bytes, Form]:
    content_type = f"multipart/form-data; boundary={_BOUNDARY}"
    form = Form(content_type, file_field="file", fields=_FIELDS, max_file_bytes=_MAX_BYTES)
    received, at = [], 0
    longest = dice.choice((1, 3, 20, 300, 10_000))
    while at < len(body):
        step = dice.randrange(longest) + 1
        received += form.feed(body[at : at + step])
        at += step
    return b"".join(received), form


def _content(dice: random.Random) -> bytes:
    if dice.random() < 0.3:
        return dice.randbytes(dice.randrange(400)).lstrip(b"-")
    content = b"".join(dice.choices(_PIECES, k=dice.randrange(12)))
    # A whole delimiter would end the file; a first hyphen in a chunk of its own is more than the
    # parser takes.
    while b"--b0undary" in content:
        content = content.replace(b"--b0undary", b"")
    return content.lstrip(b"-")


def _value(dice: random.Random) -> str:
    return "".join(dice.choices("batch 5é\u2028", k=dice.randrange(8)))


def _body(dice: random.Random, content: bytes, fields: dict[str, str]) -> bytes:
    parts = [(name, "", value.encode()) for name, value in fields.items()]
    parts.append(("file", '; filename="in.jsonl"', content))
    dice.shuffle(parts)
    body = b""
    for name, more, value in parts:
        head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
        body += head.encode() + value + b"\r\n"
    return body + f"--{_BOUNDARY}--".encode() + dice.choice((b"", b"\r\n"))


def _broken(dice: random.Random, body: bytes) -> bytes:
    bad = bytearray(body)
    for _ in range(dice.randrange(1, 5)):
        at = dice.randrange(len(bad) + 1)
        match dice.randrange(4):
            case 0:
                bad[at : at + dice.randrange(40)] = b""
            case 1:
                bad[at:at] = dice.choice(_PIECES)
            case 2:
                bad[at : at + 1] = dice.randbytes(1)
            case _:
                bad[at:at] = dice.choice(_PIECES) * dice.choice((1, 2, 300))
    return bytes(bad)
