"""Checksums of what Batchyard writes to S3, and JSON objects that carry their own. Pure.

They find damage, and nobody who means harm: who can write to the bucket can write a checksum too.
"""

import hashlib

#: How a sealed JSON object begins; its checksum and the rest of it follow.
_SEAL = b'{"seal":"'
_BYTES = 16
_DIGITS = 2 * _BYTES
_REST = len(_SEAL) + _DIGITS


class Checksum:
    """A checksum of bytes that come piece by piece."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=_BYTES)
        self.size = 0

    def add(self, piece: bytes) -> None:
        """Take the next bytes."""
        self._digest.update(piece)
        self.size += len(piece)

    @property
    def text(self) -> str:
        """The checksum of all bytes so far: 32 hex digits."""
        return self._digest.hexdigest()


def checksum(body: bytes) -> str:
    """32 hex digits that change with any byte of `body`."""
    return hashlib.blake2b(body, digest_size=_BYTES).hexdigest()


def sealed(body: bytes) -> bytes:
    """The same JSON object with its checksum as its first member, `seal`.

    It must have another member.
    """
    return b"".join((_SEAL, checksum(body).encode(), b'",', body[1:]))


def unsealed(body: bytes) -> bytes:
    """The JSON object as it was before `sealed`; one without a seal as it is.

    Versions before seals wrote none. Raises ValueError if the seal does not fit.
    """
    if not body.startswith(_SEAL):
        return body
    rest = b"{" + body[_REST + 2 :]
    if body[_REST : _REST + 2] != b'",' or checksum(rest).encode() != body[len(_SEAL) : _REST]:
        raise ValueError("its bytes are not those that were written")
    return rest
