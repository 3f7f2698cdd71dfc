"""A tenant's limits: the rates of calls and of new batches, and the quota of running batches.

Rates are leaky buckets that exist only in Redis. The quota is counted with the batches.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from shared.errors import BatchyardError
from shared.state.away import Away
from shared.state.scripts import Scripts, pairs

QuotaKind = Literal["requests", "tokens"]
#: What may keep a tenant from creating a batch, besides the rate of new ones.
NewBatchLimit = Literal["requests", "tokens", "kept_batches", "stored_bytes", "engine_deaths"]

_MICROSECONDS = 1_000_000


class Rate(NamedTuple):
    """At most `calls` in `seconds`. They may come in one burst, and become free again evenly."""

    name: str
    calls: int
    seconds: int
    #: The tenant's setting that takes the place of `calls`.
    setting: str = ""

    @property
    def arguments(self) -> tuple[int, int]:
        """The arguments of scripts: the calls, and the time in microseconds."""
        return self.calls, self.seconds * _MICROSECONDS


class RateStatus(NamedTuple):
    """A caller's tightest limit and what is left of it. Times are in microseconds."""

    rate: Rate
    #: Until the call may be retried; 0 if it was admitted and counted.
    wait: int
    left: int
    #: Until the full rate is available again.
    reset: int

    @property
    def wait_seconds(self) -> float:
        return self.wait / _MICROSECONDS

    @property
    def reset_seconds(self) -> float:
        return self.reset / _MICROSECONDS


class Quota(NamedTuple):
    """What a tenant's running batches may hold: requests, and prompt tokens of one model.

    For a batch of several models, `more_tokens` are the limits of the models after the first.
    """

    requests: int
    tokens: int
    more_tokens: tuple[int, ...] = ()


class QueueFullError(BatchyardError):
    """The batch would exceed its tenant's quota, of which `used` is in use.

    `number` is the index of its model.
    """

    def __init__(self, queue: QuotaKind, number: int = 0, *, used: int = 0) -> None:
        super().__init__(f"The batch would exceed its tenant's quota of {queue}.")
        self.queue: QuotaKind = queue
        self.number = number
        self.used = used


class KnownBatch(NamedTuple):
    """The batch exists already."""

    fingerprint: str


class Exhausted(NamedTuple):
    """A limit that is reached, and what is used of it. For tokens: of the model with the least."""

    limit: NewBatchLimit
    used: int
    #: Until the same may work again; None if that does not depend on time.
    wait_seconds: int | None = None


class NewBatchParams(NamedTuple):
    """A new batch and the limits that apply to it.

    `requests` is how many requests the tenant's running batches may hold, and `tokens` how many
    prompt tokens of each model that could run the batch. `bytes` are those that the batch brings,
    and `kept_batches` is how many batches the tenant may have at all. None is no limit.
    """

    tenant: str
    batch_id: str
    rate: Rate
    requests: int
    tokens: Mapping[str, int]
    bytes: int = 0
    stored_bytes: int | None = None
    engine_deaths: int | None = None
    kept_batches: int | None = None

    @property
    def arguments(self) -> list[str | int]:
        """The arguments of `reserve_batch.lua`."""
        return [
            self.tenant,
            self.batch_id,
            self.bytes,
            *self.rate.arguments,
            self.requests,
            "" if self.stored_bytes is None else self.stored_bytes,
            "" if self.engine_deaths is None else self.engine_deaths,
            "" if self.kept_batches is None else self.kept_batches,
            *pairs(self.tokens),
        ]


class Limits:
    """The noun `limit` of State; calls are counted by `Keys.admit`, together with the key."""

    def __init__(self, scripts: Scripts, away: Away) -> None:
        self._scripts = scripts
        self._away = away

    async def reserve(self, params: NewBatchParams) -> KnownBatch | Exhausted | RateStatus | None:
        """Count a new batch. Returns None if it may be created.

        Otherwise returns the limit that is reached (for tokens: that of every model that could run
        the batch), or the rate and how long the tenant has to wait. An existing batch is not
        counted.
        """
        [outcome] = await self.reserve_all([params])
        return outcome

    async def reserve_all(
        self, batches: Sequence[NewBatchParams]
    ) -> list[KnownBatch | Exhausted | RateStatus | None]:
        """`reserve` for each of them, in one round trip."""
        answers = await self._away.all_found(
            [one.batch_id for one in batches],
            await self._reserved(batches),
            ["away"],
            lambda places: self._reserved([batches[place] for place in places]),
        )
        return [_outcome(*pair) for pair in zip(batches, answers, strict=True)]

    async def _reserved(self, batches: Sequence[NewBatchParams]) -> list[Any]:
        if len(batches) == 1:
            # Unlike a pipeline, it shares its round trip with whatever else is asked just now.
            return [await self._scripts.run("reserve_batch", *batches[0].arguments)]
        return await self._scripts.run_all("reserve_batch", (one.arguments for one in batches))


def _outcome(
    params: NewBatchParams, answer: list[Any]
) -> KnownBatch | Exhausted | RateStatus | None:
    match answer:
        case ["known", fingerprint]:
            return KnownBatch(fingerprint)
        case ["wait", wait, reset]:
            return RateStatus(params.rate, wait, 0, reset)
        case ["engine_deaths", used, wait_seconds]:
            return Exhausted("engine_deaths", used, wait_seconds)
        case ["requests" | "tokens" | "kept_batches" | "stored_bytes" as limit, used]:
            return Exhausted(limit, used)
        case _:
            return None
