"""Reads a batch's results by offset: what there is now, and later what has come since."""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from http import HTTPStatus
from typing import Literal

from cli.client.gateway import Gateway
from shared.errors import TransientError

Order = Literal["input", "completion"]
#: How often in a row an answer may break before its first whole line.
_MAX_STALLS = 5


class Results:
    """The result lines of one batch; `offset` is the number of lines that were read."""

    def __init__(
        self, gateway: Gateway, batch_id: str, *, order: Order = "input", offset: int = 0
    ) -> None:
        self._gateway = gateway
        self._batch_id = batch_id
        self._order = order
        self.offset = offset
        #: Whether the batch has ended, and all its lines were read.
        self.is_complete = False

    def read(self) -> Iterator[bytes]:
        """All lines that are there now, in pieces of whole lines."""
        is_cut, stalls = True, 0
        while is_cut:
            begin = self.offset
            query = {"order": self._order, "offset": begin}
            with self._gateway.open(f"batches/{self._batch_id}/results", params=query) as answer:
                expected = begin + int(answer.headers["x-batchyard-returned-rows"])
                with suppress(TransientError):
                    for piece in whole_lines(answer.chunks):
                        # Counted before it is used: nobody gets a line twice.
                        self.offset += piece.count(b"\n")
                        yield piece
                is_cut = self.offset < expected
                self.is_complete = not is_cut and answer.headers["x-batchyard-complete"] == "true"
            stalls = 0 if self.offset > begin else stalls + 1
            if is_cut and stalls == _MAX_STALLS:
                raise TransientError(
                    f"The connection breaks each time before line {begin + 1} of the results of "
                    f"{self._batch_id}. Try again later."
                )


def only_failed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Of these lines, the ones of requests that have an error."""
    for piece in pieces:
        lines = piece.splitlines(keepends=True)
        if failed := b"".join(line for line in lines if _is_failed(line)):
            yield failed


def whole_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks, cut at line feeds; what comes after the last line feed is dropped."""
    rest: list[bytes] = []
    for chunk in chunks:
        whole, line_feed, begun = chunk.rpartition(b"\n")
        if line_feed:
            yield b"".join([*rest, whole, line_feed])
            rest = []
        if begun:
            rest.append(begun)


def _is_failed(line: bytes) -> bool:
    result = json.loads(line)
    response = result.get("response") or {}
    return result.get("error") is not None or (
        response.get("status_code", HTTPStatus.OK) >= HTTPStatus.BAD_REQUEST
    )
