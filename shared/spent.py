"""GPU time that rows have cost, what it comes to, and what was used on a day. Pure."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

#: GPU time in microseconds, by pool.
Spent = Mapping[str, int]
#: The price of a GPU's hour, by pool.
Prices = Mapping[str, float]

#: Its type lets nobody change it, and it can be pickled.
NOTHING: Spent = {}
_NONE = "-"
_HOUR = 3_600_000_000


class GpuUse(NamedTuple):
    """What a tenant has used of an engine, by the engine's own lane."""

    tenant: str
    lane: str
    micros: int
    #: By currency, in capital letters.
    amounts: Mapping[str, float]


class ModelUse(NamedTuple):
    """Requests and tokens of a tenant; `model` is empty for batches with several."""

    tenant: str
    model: str
    endpoint: str
    requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int


class Day(NamedTuple):
    """All that ended on one day; days are counted from 1970, in UTC."""

    number: int
    gpus: Sequence[GpuUse]
    models: Sequence[ModelUse]


def plus(*parts: Spent) -> Spent:
    """The sum."""
    total = Counter[str]()
    for part in parts:
        total.update(part)
    return dict(total)


def to_text(spent: Spent) -> str:
    """As one word, such as `h100=1200,l4=80`; `-` for nothing."""
    return ",".join(f"{pool}={micros}" for pool, micros in sorted(spent.items()) if micros) or _NONE


def from_text(text: str) -> Spent:
    """The inverse of `to_text`. Raises ValueError."""
    if text in ("", _NONE):
        return NOTHING
    if not re.fullmatch(r"[a-z0-9-]+=\d+(,[a-z0-9-]+=\d+)*", text):
        raise ValueError(f"{text!r} does not say what was spent")
    pairs = (part.partition("=") for part in text.split(","))
    return {pool: int(micros) for pool, _, micros in pairs}


def of_lanes(text: str) -> Spent:
    """What a batch's record says that it has spent, by the lane of the engine."""
    found: dict[str, int] = json.loads(text) if text else {}
    return found


def by_pool(lanes: Spent) -> Spent:
    """The same by pool."""
    return plus(*({lane.rpartition("@")[2]: micros} for lane, micros in lanes.items()))


def money(lanes: Spent, prices: Prices) -> float:
    """What the lanes' time comes to, in the currency of the prices; a pool without one is free."""
    return sum(
        micros / _HOUR * prices.get(lane.rpartition("@")[2], 0.0) for lane, micros in lanes.items()
    )


def prices_text(prices: Prices, currency: str) -> str:
    """The prices, as a batch's record keeps them from its plan on."""
    kept = {pool: price for pool, price in sorted(prices.items()) if price}
    return json.dumps({"currency": currency, "pools": kept})


def of_engines(lane: str, spent: Spent) -> Spent:
    """What a part of this lane has spent, by the lane of the engine that ran it."""
    return {f"{lane.rpartition('@')[0]}@{pool}": micros for pool, micros in spent.items()}
