"""What the batches that ended on a day have used, by tenant, and what it cost."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from shared.spent import Day, GpuUse, ModelUse
from shared.state.client import Client

_GPU, _MONEY = "gpu", "nano"
_NANO = 1_000_000_000


class Spending:
    """The noun `spending` of State."""

    def __init__(self, redis: Client, namespace: str) -> None:
        self._redis = redis
        self._namespace = namespace

    async def days(self, numbers: Sequence[int], *, tenant: str | None = None) -> list[Day]:
        """What each of these days has; with `tenant`, only what is its own."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for number in numbers:
                pipe.hgetall(f"{self._namespace}spent:{number}")
            found = await pipe.execute()
        return [_day(number, one, tenant) for number, one in zip(numbers, found, strict=True)]


def _day(number: int, fields: Mapping[str, str], tenant: str | None) -> Day:
    gpus = defaultdict[tuple[str, str], int](int)
    amounts = defaultdict[tuple[str, str], dict[str, float]](dict)
    counts = defaultdict[tuple[str, str, str], dict[str, int]](dict)
    for field, value in fields.items():
        what, owner, *whose = field.split(" ")
        if tenant not in (None, owner):
            continue
        if what == _GPU:
            gpus[owner, whose[0]] = int(value)
        elif what == _MONEY:
            amounts[owner, whose[0]][whose[1]] = int(value) / _NANO
        else:
            counts[owner, whose[0], whose[1]][what] = int(value)
    return Day(
        number,
        [GpuUse(*key, micros, amounts[key]) for key, micros in sorted(gpus.items())],
        [
            ModelUse(
                owner,
                "" if model == "-" else model,
                endpoint,
                *(found.get(name, 0) for name in ("requests", "input", "cached", "output")),
            )
            for (owner, model, endpoint), found in sorted(counts.items())
        ],
    )
