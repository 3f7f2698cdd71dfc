"""A span as the rest of the code knows it: those that nobody records, and what describes one."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Literal, NamedTuple, Self

from structlog.contextvars import bind_contextvars, reset_contextvars

Kind = Literal["internal", "server", "client", "producer", "consumer"]
Attributes = Mapping[str, str | int | float]


class Span:
    """A span that nobody records. `with` begins and ends it."""

    #: What a process that goes on with the work takes as `parent`; empty if nobody records it.
    traceparent: str = ""
    is_recorded: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Its end; an exception makes it a failed one, by the name of its class alone."""

    def rename(self, name: str) -> None:
        """Give it the name that was not known at its beginning."""

    def set(self, attributes: Attributes) -> None:
        """Add attributes."""

    def add_event(self, name: str, attributes: Attributes, *, at: float) -> None:
        """Add an event; `at` is in Unix seconds."""

    def fail(self, error_type: str) -> None:
        """Mark it as failed; `error_type` is one of few words."""


class NamedSpan(Span):
    """A span that nobody records. The log lines from within it name its trace."""

    def __init__(self, trace_id: str) -> None:
        """`trace_id` is empty if there is no trace."""
        self._trace_id = trace_id

    def __enter__(self) -> Self:
        named = {"trace_id": self._trace_id} if self._trace_id else {}
        self._logged = bind_contextvars(**named)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        reset_contextvars(**self._logged)


class PastSpan(NamedTuple):
    """A span that is over when it is sent; times are Unix seconds."""

    name: str
    parent: str
    #: In hexadecimal.
    span_id: str
    began_at: float
    ended_at: float
    attributes: Attributes
    #: Names and times.
    events: Sequence[tuple[str, float]] = ()
    #: Why it failed, in one of few words; empty if it did not.
    error_type: str = ""
