"""Which faults come when; the seed determines everything. Pure."""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

from tests.chaos.points import POINTS

T = TypeVar("T")
K = TypeVar("K", bound=str)
Kind = Literal["kill", "freeze", "cut_off", "cut", "slow", "hang", "refuse"]

GATEWAYS = ("gateway-1", "gateway-2")
DISPATCHERS = ("dispatcher-1", "dispatcher-2")
LANE_JOB = "lane-job"
#: What dies of a real cluster, besides: the engine's core and its replica, what runs in a wave, the
#: node's daemon, and the head's own store.
RAY_TARGETS = (LANE_JOB, "engine-core", "wave", "replica", "raylet", "gcs")
_LINKS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(GATEWAYS, ("redis", "rabbitmq", "s3")),
    **dict.fromkeys(DISPATCHERS, ("redis", "rabbitmq", "s3", "cluster")),
    LANE_JOB: ("redis", "s3"),
    "clients": (*GATEWAYS, "rabbitmq"),
}
#: How often each process is hit, compared with the others. A broker or a whole Ceph takes seconds
#: to come back, in which little else can go wrong.
_KILLED = {
    **dict.fromkeys(GATEWAYS, 6),
    **dict.fromkeys(DISPATCHERS, 8),
    LANE_JOB: 16,
    "engine": 4,
    "cluster": 2,
    "redis": 4,
    "s3": 1,
    "rabbitmq": 1,
    "ceph": 1,
}
_FROZEN = {
    **dict.fromkeys(GATEWAYS, 2),
    **dict.fromkeys(DISPATCHERS, 3),
    LANE_JOB: 3,
    "engine": 1,
    "redis": 1,
    "rabbitmq": 1,
    "s3": 1,
    "ceph": 1,
    "cluster": 1,
}
_KINDS: dict[Kind, int] = {
    "kill": 10,
    "freeze": 3,
    "cut_off": 1,
    "cut": 4,
    "slow": 2,
    "hang": 2,
    "refuse": 2,
}


class Aims(NamedTuple):
    """What there is to be hit, and how often each compared with the others."""

    killed: Mapping[str, int]
    frozen: Mapping[str, int]
    kinds: Mapping[Kind, int]
    #: What each process talks to, by a link of its own.
    links: Mapping[str, tuple[str, ...]]


def _without(weights: Mapping[K, int], *names: K) -> dict[K, int]:
    return {name: weight for name, weight in weights.items() if name not in names}


#: The fleet on the simulated engine and the substitute for Ray.
STUB = Aims(_KILLED, _FROZEN, _KINDS, {**_LINKS, LANE_JOB: (*_LINKS[LANE_JOB], "engine")})
#: The fleet on a real Ray, whose own processes are hit one after the other besides.
REAL = Aims(
    _without(_KILLED, LANE_JOB, "engine", "cluster"),
    _without(_FROZEN, "engine", "cluster"),
    _without(_KINDS, "cut_off"),
    _LINKS,
)
#: A killed process of ours dies once more at a named point, after so many passages at most.
_MAX_PASSAGES = 4
#: Every lease of a run is shorter; see `tests.chaos.fleet`.
_FREEZE_SECONDS = (1.0, 9.0)
#: As if the machine was suspended: longer than the storage daemons' default leases.
_PAUSE_SECONDS = (17.0, 25.0)
_LINK_SECONDS = (1.0, 6.0)
#: The end of a run is for recovery from earlier faults.
_CALM_SECONDS = 3.0


class Fault(NamedTuple):
    """What happens `at` so many seconds after the start, for how many `seconds`.

    A process killed with a `point` dies there next, the `nth` time that it comes by.
    """

    at: float
    kind: Kind
    target: str
    seconds: float = 0.0
    point: str = ""
    nth: int = 1
    #: Of a slow link: seconds of latency, and bytes a second.
    value: tuple[float, float] = (0.0, 0.0)

    def link_order(self) -> dict[str, object]:
        """The fault in the form that the proxies take."""
        return {"fault": self.kind, "link": self.target, "value": self.value}


def room(process: str) -> str:
    """In which room a process's crash points are."""
    return process.rpartition("-")[0] if process != LANE_JOB else "lane_job"


def only_kills(aims: Aims, target: str) -> Aims:
    """These aims, with nothing but kills of one process of theirs, or ValueError."""
    if target not in aims.killed:
        raise ValueError(f"there is no {target!r}; there are {', '.join(aims.killed)}")
    return aims._replace(killed={target: 1}, kinds={"kill": 1})


def plan(seed: int, seconds: float, *, gap_seconds: float = 2.0, aims: Aims = STUB) -> list[Fault]:
    """The faults of a run of so many seconds, in the order of time."""
    dice = random.Random(seed)
    points = {name: _turns(dice, names) for name, names in POINTS.items()}
    faults, at = [], 0.0
    while (at := at + dice.expovariate(1 / gap_seconds)) < seconds - _CALM_SECONDS:
        faults.append(_fault(dice, round(at, 2), points, aims))
    return faults


def point_by_point(seed: int) -> dict[str, Iterator[str]]:
    """For each room, an endless sequence of the points where its next processes die."""
    dice = random.Random(seed)

    def places(names: Sequence[str]) -> Iterator[str]:
        for name in _turns(dice, names):
            yield f"{name}:{dice.randint(1, _MAX_PASSAGES)}"

    return {name: places(names) for name, names in POINTS.items()}


def _fault(dice: random.Random, at: float, points: dict[str, Iterator[str]], aims: Aims) -> Fault:
    kind = _one_of(dice, aims.kinds)
    match kind:
        case "kill":
            target = _one_of(dice, aims.killed)
            if room(target) not in points:
                return Fault(at, kind, target)
            nth = dice.randint(1, _MAX_PASSAGES)
            return Fault(at, kind, target, point=next(points[room(target)]), nth=nth)
        case "freeze":
            target = _one_of(dice, aims.frozen)
            limits = _PAUSE_SECONDS if target == "ceph" else _FREEZE_SECONDS
            return Fault(at, kind, target, _seconds(dice, limits))
        case "cut_off":
            return Fault(at, kind, LANE_JOB, _seconds(dice, _FREEZE_SECONDS))
        case _:
            link = dice.choice(
                [f"{one}>{other}" for one in aims.links for other in aims.links[one]]
            )
            seconds = 0.0 if kind == "cut" else _seconds(dice, _LINK_SECONDS)
            value = (round(dice.uniform(0.02, 0.3), 3), round(dice.uniform(5e3, 5e5)))
            return Fault(at, kind, link, seconds, value=value if kind == "slow" else (0.0, 0.0))


def _one_of(dice: random.Random, weights: Mapping[T, int]) -> T:
    return dice.choices(list(weights), list(weights.values()))[0]


def _seconds(dice: random.Random, limits: tuple[float, float]) -> float:
    return round(dice.uniform(*limits), 2)


def _turns(dice: random.Random, names: Sequence[str]) -> Iterator[str]:
    """All names in a random order, then in another, without end."""
    while True:
        yield from dice.sample(names, len(names))
