"""By what an answer is found again: what was asked, of which model, by whom. Pure."""

import base64
import hashlib
import json
from typing import Any, NamedTuple

from shared.errors import BatchyardError

#: Bits enough that nobody finds two questions with one key.
_KEY_BYTES, _DIGEST_BYTES = 16, 9


class BrokenEntryError(BatchyardError):
    """An entry of the cache is not what was written."""


class CachedAnswer(NamedTuple):
    """Where the body of an answer is: bytes [start, end) of an output file, with their digest."""

    #: Unix seconds.
    until: int
    file_id: str
    start: int
    end: int
    digest: str

    def to_text(self) -> str:
        return " ".join(map(str, self))

    def fits(self, body: bytes) -> bool:
        """Whether these are its bytes."""
        return len(body) == self.end - self.start and answer_digest(body) == self.digest


def to_cached_answer(text: str) -> CachedAnswer:
    """Decode an entry. Raises BrokenEntryError."""
    fields = text.split(" ")
    try:
        until, file_id, start, end, digest = fields
        return CachedAnswer(int(until), file_id, int(start), int(end), digest)
    except ValueError as error:
        raise BrokenEntryError("An entry of the cache cannot be read.") from error


def answer_key(secret: str, identity: str, url: str, body: dict[str, Any]) -> str:
    """The key of a request's answer.

    `identity` is the model's (`Catalog.identity`), and `secret` the tenant's, so that keys say
    nothing about requests, nor whether two tenants have asked the same. The order of a body's
    fields does not matter.
    """
    canonical = json.dumps([identity, url, body], sort_keys=True, separators=(",", ":"))
    digest = hashlib.blake2b(
        canonical.encode(), digest_size=_KEY_BYTES, key=secret.encode(), person=b"answer"
    )
    return _text(digest.digest())


def answer_digest(body: bytes) -> str:
    """What is kept of an answer, to know whether it is still the same."""
    return _text(hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest())


def _text(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
