"""One gateway over HTTP: calls that are tried again, and streams."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from itertools import chain
from typing import Any, NamedTuple

import httpx
import stamina
from stamina.instrumentation import set_on_retry_hooks

from cli.client.contexts import Target
from cli.client.refusals import refusal
from shared.errors import LimitError, TransientError

#: How long a command that asks once waits for a gateway that does not answer.
ASK_SECONDS = 10.0
#: The same for a command that waits for a batch: long enough for an upgrade of the gateway.
WAIT_SECONDS = 900.0
_CONNECT_SECONDS = 5.0
#: The gateway sends something at least every 15 seconds.
_READ_SECONDS = 60.0


class Answer(NamedTuple):
    """The beginning of an answer, and its body as it comes."""

    status: int
    headers: Mapping[str, str]
    #: Raises TransientError if the connection breaks.
    chunks: Iterator[bytes]


class Gateway:
    """A gateway and a key for it. What is transient is tried again for `patience` seconds."""

    def __init__(
        self,
        target: Target,
        *,
        patience: float = ASK_SECONDS,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.target = target
        self._patience = patience
        self._report = report
        self._reported_at = -_READ_SECONDS
        self._http = httpx.Client(
            base_url=f"{target.url}/",
            headers={"authorization": f"Bearer {target.key}"},
            timeout=httpx.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS),
        )
        # It would log each attempt.
        set_on_retry_hooks(())

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """The JSON at a path. Raises what `refusal` makes of an error, here and below."""
        params = {name: value for name, value in query.items() if value is not None}
        return self._json("GET", path, params=params)

    def all_of(self, path: str, *, at_once: int) -> list[dict[str, Any]]:
        """Every object of a list, page by page."""
        page = self.get(path, limit=at_once)
        found: list[dict[str, Any]] = page["data"]
        while page["has_more"]:
            page = self.get(path, limit=at_once, after=found[-1]["id"])
            found += page["data"]
        return found

    def post(
        self, path: str, body: Mapping[str, Any] | None = None, *, key: str | None = None
    ) -> dict[str, Any]:
        """Post a body as JSON, with an idempotency key if the call has one."""
        headers = {} if key is None else {"idempotency-key": key}
        return self._json("POST", path, json=body, headers=headers)

    def post_lines(self, path: str, lines: bytes) -> dict[str, Any]:
        """Post lines of JSON."""
        headers = {"content-type": "application/x-ndjson"}
        return self._json("POST", path, content=lines, headers=headers)

    def delete(self, path: str) -> dict[str, Any]:
        return self._json("DELETE", path)

    def post_form(self, path: str, make_form: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Post a multipart form, which is made anew for each attempt."""
        for attempt in self._attempts():
            with attempt:
                return self._called("POST", path, **make_form())
        raise AssertionError("unreachable: stamina raises after its last attempt")

    @contextmanager
    def open(
        self,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[Answer]:
        """Begin to read an answer of any size. Only its beginning is tried again."""
        with self._answered("GET", path, params=params, headers=headers) as answer:
            yield answer

    @contextmanager
    def open_post(self, path: str, body: Mapping[str, Any]) -> Iterator[Answer]:
        """Post a body as JSON, and begin to read the answer. Only its beginning is tried again."""
        with self._answered("POST", path, json=body) as answer:
            yield answer

    @contextmanager
    def _answered(self, method: str, path: str, **options: Any) -> Iterator[Answer]:
        response, chunks = self._opened(method, path, options)
        try:
            yield Answer(response.status_code, response.headers, chunks)
        finally:
            response.close()

    def _opened(
        self, method: str, path: str, options: Mapping[str, Any]
    ) -> tuple[httpx.Response, Iterator[bytes]]:
        """The answer and its bytes; a stream that breaks before the first ones is tried again."""
        for attempt in self._attempts():
            with attempt:
                request = self._http.build_request(method, path, **options)
                response = self._sent(request, stream=True)
                chunks = self._chunks(response)
                try:
                    return response, chain([next(chunks, b"")], chunks)
                except BaseException:
                    response.close()
                    raise
        raise AssertionError("unreachable: stamina raises after its last attempt")

    def _json(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        for attempt in self._attempts():
            with attempt:
                return self._called(method, path, **options)
        raise AssertionError("unreachable: stamina raises after its last attempt")

    def _called(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        response = self._sent(self._http.build_request(method, path, **options), stream=False)
        try:
            answer: dict[str, Any] = response.json()
        except ValueError as error:
            raise TransientError(
                f"{self.target.url} answers, but not as a gateway does. Is it the right base URL? "
                "It usually ends in /v1."
            ) from error
        return answer

    def _sent(self, request: httpx.Request, *, stream: bool) -> httpx.Response:
        try:
            response = self._http.send(request, stream=stream)
            if response.status_code >= HTTPStatus.BAD_REQUEST:
                response.read()
                raise refusal(response.status_code, response.content, response.headers)
        except httpx.TransportError as error:
            raise self._silent(error) from error
        return response

    def _chunks(self, response: httpx.Response) -> Iterator[bytes]:
        try:
            yield from response.iter_bytes()
        except httpx.TransportError as error:
            raise self._silent(error) from error

    def _silent(self, error: httpx.TransportError) -> TransientError:
        why = str(error) or type(error).__name__
        return TransientError(
            f"{self.target.url} does not answer ({why}). Is the fleet up, and is this its base URL?"
        )

    def _attempts(self) -> Any:
        return stamina.retry_context(
            on=self._may_retry, attempts=None, timeout=self._patience, wait_max=5
        )

    def _may_retry(self, error: Exception) -> bool | float:
        if isinstance(error, LimitError) and error.wait_seconds is not None:
            return error.wait_seconds
        if not isinstance(error, TransientError):
            return False
        if time.monotonic() - self._reported_at >= _READ_SECONDS:
            self._reported_at = time.monotonic()
            self._report(f"{error} Trying again.")
        return True
