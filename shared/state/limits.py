"""How much a tenant may ask for: calls in a time, new batches, and what its running batches hold.

Calls are counted in memory only, by a leaky bucket; the queue lies beside the batches themselves.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from shared.errors import BatchyardError
from shared.state.scripts import Scripts, pairs

Queue = Literal["requests", "tokens"]

_MICROSECONDS = 1_000_000


class Rate(NamedTuple):
    """So many calls in so many seconds; they may come at once, and their room comes back evenly."""

    name: str
    calls: int
    seconds: int

    @property
    def arguments(self) -> tuple[int, int]:
        """As scripts take it: the calls, and the time in microseconds."""
        return self.calls, self.seconds * _MICROSECONDS


class Standing(NamedTuple):
    """How a caller stands with the limit that leaves the least room; times in microseconds."""

    rate: Rate
    #: Until the call may be tried again; 0 when it was let in, and counted.
    wait: int
    left: int
    #: Until all calls are free again.
    reset: int

    @property
    def wait_seconds(self) -> float:
        return self.wait / _MICROSECONDS

    @property
    def reset_seconds(self) -> float:
        return self.reset / _MICROSECONDS


class Quota(NamedTuple):
    """What the running batches of a tenant may hold: requests, and prompt tokens of one model.

    For a batch of several models, `more_tokens` are those of the models after the first.
    """

    requests: int
    tokens: int
    more_tokens: tuple[int, ...] = ()


class QueueFullError(BatchyardError):
    """The batch would exceed its tenant's quota; `number` is that of its model, from 0."""

    def __init__(self, queue: Queue, number: int = 0) -> None:
        super().__init__(f"The queue of {queue} has no room for the batch.")
        self.queue: Queue = queue
        self.number = number


class Known(NamedTuple):
    """The batch that was to be made exists."""

    fingerprint: str


class NewBatchWish(NamedTuple):
    """A batch that is about to be made, and its limits as `reserve` takes them."""

    tenant: str
    batch_id: str
    rate: Rate
    requests: int
    tokens: Mapping[str, int]

    @property
    def arguments(self) -> list[str | int]:
        """As `reserve_batch.lua` takes it."""
        return [
            self.tenant,
            self.batch_id,
            *self.rate.arguments,
            self.requests,
            *pairs(self.tokens),
        ]


class Limits:
    """The noun `limit` of State; keys bring their own, so that a call costs one round trip."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    async def reserve(
        self,
        tenant: str,
        batch_id: str,
        *,
        rate: Rate,
        requests: int,
        tokens: Mapping[str, int],
    ) -> Known | Queue | Standing | None:
        """Count a batch that is about to be made; None says that it may be.

        `requests` is the most that the tenant's running batches may hold, `tokens` the most prompt
        tokens by model, of those that could run the batch. Returns the queue that is full already
        (of tokens: those of all these models), or how the tenant stands when it has to wait.
        """
        wish = NewBatchWish(tenant, batch_id, rate, requests, tokens)
        return _reserved(wish, await self._scripts.run("reserve_batch", *wish.arguments))

    async def reserve_all(
        self, wishes: Sequence[NewBatchWish]
    ) -> list[Known | Queue | Standing | None]:
        """`reserve` for each of them, in one round trip."""
        answers = await self._scripts.run_all("reserve_batch", (wish.arguments for wish in wishes))
        return [_reserved(*pair) for pair in zip(wishes, answers, strict=True)]


def _reserved(wish: NewBatchWish, answer: list[Any]) -> Known | Queue | Standing | None:
    match answer:
        case ["known", fingerprint]:
            return Known(fingerprint)
        case ["wait", wait, reset]:
            return Standing(wish.rate, wait, 0, reset)
        case ["requests"]:
            return "requests"
        case ["tokens"]:
            return "tokens"
        case _:
            return None
