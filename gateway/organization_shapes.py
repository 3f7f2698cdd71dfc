"""OpenAI's pages of costs and of usage, and how days become their buckets. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict

from shared.engines import EngineSeconds
from shared.openai.shapes import Amount
from shared.retention import DAY_SECONDS
from shared.spent import Day, ModelUse, Prices

T = TypeVar("T")
Grouping = Literal["project_id", "user_id", "api_key_id", "model", "batch", "line_item"]
_HOUR = 3_600_000_000
_EMBEDDINGS = "/v1/embeddings"


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True)


class CostResult(_Shape):
    """Money of a day; null where it is not grouped by that."""

    object: Literal["organization.costs.result"] = "organization.costs.result"
    amount: Amount
    line_item: str | None = None
    project_id: str | None = None
    #: Not in OpenAI's API.
    gpu_seconds: float = 0.0


class CompletionsResult(_Shape):
    """Usage of a day's batches; null where it is not grouped by that."""

    object: Literal["organization.usage.completions.result"] = (
        "organization.usage.completions.result"
    )
    input_tokens: int
    input_cached_tokens: int
    output_tokens: int
    num_model_requests: int
    project_id: str | None = None
    user_id: str | None = None
    api_key_id: str | None = None
    model: str | None = None
    batch: bool | None = None


class EmbeddingsResult(_Shape):
    """The same for batches of embeddings."""

    object: Literal["organization.usage.embeddings.result"] = "organization.usage.embeddings.result"
    input_tokens: int
    num_model_requests: int
    project_id: str | None = None
    user_id: str | None = None
    api_key_id: str | None = None
    model: str | None = None


class Bucket(_Shape, Generic[T]):
    """One day, in Unix seconds."""

    object: Literal["bucket"] = "bucket"
    start_time: int
    end_time: int
    results: list[T]


class Page(_Shape, Generic[T]):
    """Some days; `next_page` is the `page` of the call for the others."""

    object: Literal["page"] = "page"
    data: list[Bucket[T]]
    has_more: bool = False
    next_page: str | None = None


class Days(NamedTuple):
    """Days that a call asks for, and the page after them."""

    numbers: Sequence[int]
    next_page: str | None


def asked_days(
    start_time: int, end_time: int | None, *, limit: int, page: str | None, now: float
) -> Days:
    """At most `limit` days from `start_time`, or from `page`, up to before `end_time`."""
    end = int(now) if end_time is None else end_time
    first = start_time // DAY_SECONDS if page is None else int(page)
    # A day that has begun belongs to it.
    stop = max(first, -(-end // DAY_SECONDS))
    last = min(stop, first + limit)
    return Days(range(first, last), str(last) if last < stop else None)


def page_of(days: Days, found: Sequence[Day], results: Callable[[Day], Iterable[T]]) -> Page[T]:
    """The answer to a call."""
    return Page(
        data=[
            Bucket(
                start_time=day.number * DAY_SECONDS,
                end_time=(day.number + 1) * DAY_SECONDS,
                results=list(results(day)),
            )
            for day in found
        ],
        has_more=days.next_page is not None,
        next_page=days.next_page,
    )


def costs(
    day: Day,
    overheads: Sequence[EngineSeconds],
    prices: Prices,
    currency: str,
    *,
    by: Iterable[Grouping],
) -> list[CostResult]:
    """The day's costs. `overheads` are engines whose other time counts as well.

    That time is no tenant's, and has the prices of now.
    """
    groups = frozenset(by)
    micros = defaultdict[tuple[str | None, str | None, str], int](int)
    amounts = defaultdict[tuple[str | None, str | None, str], float](float)

    def add(tenant: str | None, item: str, money: Mapping[str, float], time: int) -> None:
        for number, (unit, value) in enumerate((money or {currency: 0.0}).items()):
            key = (
                tenant if "project_id" in groups else None,
                item if "line_item" in groups else None,
                unit,
            )
            amounts[key] += value
            micros[key] += 0 if number else time

    for use in day.gpus:
        add(use.tenant, use.lane, use.amounts, use.micros)
    for one in overheads:
        price = prices.get(one.lane.rpartition("@")[2], 0.0)
        for what, time in one.overheads.items():
            if time:
                add(None, f"{one.lane}, {what}", {currency: time / _HOUR * price}, time)
    return [
        CostResult(
            amount=Amount(value=round(amounts[key], 9), currency=key[2].lower()),
            project_id=key[0],
            line_item=key[1],
            gpu_seconds=round(micros[key] / 1e6, 6),
        )
        for key in sorted(amounts, key=str)
    ]


def completions(day: Day, *, by: Iterable[Grouping]) -> list[CompletionsResult]:
    """What the day's batches that generate have used."""
    is_batch = True if "batch" in by else None
    return [
        CompletionsResult(
            input_tokens=use.input_tokens,
            input_cached_tokens=use.cached_tokens,
            output_tokens=use.output_tokens,
            num_model_requests=use.requests,
            project_id=use.tenant or None,
            model=use.model or None,
            batch=is_batch,
        )
        for use in _summed(day.models, by, are_embeddings=False)
    ]


def embeddings(day: Day, *, by: Iterable[Grouping]) -> list[EmbeddingsResult]:
    """What the day's batches of embeddings have used."""
    return [
        EmbeddingsResult(
            input_tokens=use.input_tokens,
            num_model_requests=use.requests,
            project_id=use.tenant or None,
            model=use.model or None,
        )
        for use in _summed(day.models, by, are_embeddings=True)
    ]


def _summed(
    uses: Iterable[ModelUse], by: Iterable[Grouping], *, are_embeddings: bool
) -> list[ModelUse]:
    groups = frozenset(by)
    sums: dict[tuple[str, str], ModelUse] = {}
    for use in uses:
        if (use.endpoint == _EMBEDDINGS) != are_embeddings:
            continue
        tenant = use.tenant if "project_id" in groups else ""
        model = use.model if "model" in groups else ""
        before = sums.get((tenant, model), ModelUse(tenant, model, "", 0, 0, 0, 0))
        sums[tenant, model] = ModelUse(
            tenant, model, "", *(a + b for a, b in zip(before[3:], use[3:], strict=True))
        )
    return list(sums.values())
