"""Ends connections whose clients read too slowly and so hold buffers and places."""

from asyncio import TimerHandle

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

log = structlog.get_logger()

#: However little there is to read, a client has this long: networks stand still for moments.
_LEAST_SECONDS = 30.0


def reading_at_least(
    bytes_per_second: int, *, least_seconds: float = _LEAST_SECONDS
) -> type[HttpToolsProtocol]:
    """The protocol of uvicorn, for clients that read at least so fast.

    It writes on only once a client has taken nearly all that was written, so what waits at that
    moment says how long the client may take. Time in which the server has nothing to say does not
    count.
    """

    class PatientProtocol(HttpToolsProtocol):
        _reading: TimerHandle | None = None

        def pause_writing(self) -> None:
            super().pause_writing()
            waiting = self.transport.get_write_buffer_size()
            seconds = max(least_seconds, waiting / bytes_per_second)
            self._reading = self.loop.call_later(seconds, self._end)

        def resume_writing(self) -> None:
            self._has_read()
            super().resume_writing()

        def connection_lost(self, exc: Exception | None) -> None:
            self._has_read()
            super().connection_lost(exc)

        def timeout_keep_alive_handler(self) -> None:
            super().timeout_keep_alive_handler()
            # Closing waits for the client to read what is left.
            if self.transport.get_write_buffer_size():
                self._end()

        def _has_read(self) -> None:
            if self._reading is not None:
                self._reading.cancel()
                self._reading = None

        def _end(self) -> None:
            log.warning("client.reads_too_slowly", path=self.scope["path"])
            self.transport.abort()

    return PatientProtocol
