"""What Prometheus gets to see: every name, and how the numbers become families.

Label values are statuses, lanes of the catalog, routes and services of ours, never texts of users.
"""

import hmac
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.state.census import Counted, LaneCount

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

_LANE: tuple[tuple[str, str, Callable[[LaneCount], float]], ...] = (
    ("batches", "Running batches that are not paused.", lambda lane: lane.batches),
    ("ready_slices", "Slices to be claimed.", lambda lane: lane.ready_slices),
    ("claimed_slices", "Slices that a lane job runs.", lambda lane: lane.claimed_slices),
    ("rows", "Rows that the present lane job has committed.", lambda lane: lane.rows),
    ("failed", "Whether the engine cannot start.", lambda lane: lane.has_failed),
)


class Calls:
    """The HTTP calls of one gateway."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "batchyard_http_requests",
            "Calls answered.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "batchyard_http_request_seconds",
            "From the first byte of a call to the last one of its answer.",
            ("method", "route"),
            buckets=_BUCKETS,
            registry=self._registry,
        )

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """One call; `route` is the template, empty when none matched."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def exposition(self) -> bytes:
        """What a scrape gets."""
        return generate_latest(self._registry)


def fleet_exposition(
    counted: Counted | None, *, up: Mapping[str, bool], dead_letters: int | None, leads: bool
) -> bytes:
    """What a scrape of a dispatcher gets; what could not be counted is left out."""
    families: list[Metric] = [
        _gauge("batchyard_service_up", "Whether it answers.", "service", up.items()),
        _gauge("batchyard_dispatcher_leads", "Whether this one leads.", "", [("", leads)]),
    ]
    if dead_letters is not None:
        text = "Messages that could not be read, in batch.dead.submit."
        families.append(_gauge("batchyard_dead_letters", text, "", [("", dead_letters)]))
    if counted is not None:
        families += _families(counted)
    registry = CollectorRegistry()
    registry.register(_Once(families))
    return generate_latest(registry)


def may_scrape(authorization: str | None, token: str) -> bool:
    """Whether this is the header of the one who has the token."""
    given = (authorization or "").encode("latin-1", "replace")
    return hmac.compare_digest(given, f"Bearer {token}".encode())


class _Once(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def _families(counted: Counted) -> Iterator[Metric]:
    at = counted.at
    yield _gauge(
        "batchyard_batches",
        "Batches in a status that is not final.",
        "status",
        [(status, found.number) for status, found in counted.live.items()],
    )
    yield _gauge(
        "batchyard_oldest_batch_seconds",
        "Since the batch that is longest in the status came into it.",
        "status",
        [(status, _age(at, found.since)) for status, found in counted.live.items()],
    )
    ended = CounterMetricFamily(
        "batchyard_batches_ended", "Batches that came to their end.", labels=["status"]
    )
    for status, number in counted.ended.items():
        ended.add_metric([status], number)
    yield ended
    yield _gauge(
        "batchyard_outbox_entries",
        "Written together with a state, and not published yet.",
        "outbox",
        [(box, found.number) for box, found in counted.outboxes.items()],
    )
    yield _gauge(
        "batchyard_outbox_oldest_seconds",
        "Since the oldest of them was written.",
        "outbox",
        [(box, _age(at, found.since)) for box, found in counted.outboxes.items()],
    )
    if counted.next_window_at is not None:
        yield _gauge(
            "batchyard_next_window_seconds",
            "Until the next completion window of a live batch closes.",
            "",
            [("", counted.next_window_at - at)],
        )
    yield _gauge(
        "batchyard_webhooks_overdue_seconds",
        "Since the first webhook delivery was due.",
        "",
        [("", _age(at, counted.webhooks_due_at))],
    )
    yield _gauge(
        "batchyard_redis_memory_bytes", "What Redis holds.", "", [("", counted.memory_bytes)]
    )
    yield _gauge(
        "batchyard_redis_max_memory_bytes",
        "At how much Redis refuses writes; without a bound of its own, the machine's memory.",
        "",
        [("", counted.max_memory_bytes)],
    )
    yield from _lane_families(counted)


def _lane_families(counted: Counted) -> Iterator[Metric]:
    for name, text, number in _LANE:
        values = [(lane, number(count)) for lane, count in counted.lanes.items()]
        yield _gauge(f"batchyard_lane_{name}", text, "lane", values)
    beats = {lane: count.job_beat_at for lane, count in counted.lanes.items()}
    yield _gauge(
        "batchyard_lane_job_silent_seconds",
        "Since the lane job's last sign of life.",
        "lane",
        [(lane, _age(counted.at, beat)) for lane, beat in beats.items() if beat],
    )


def _gauge(
    name: str, text: str, label: str, values: Iterable[tuple[str, float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label] if label else [])
    for value, number in values:
        family.add_metric([value] if label else [], float(number))
    return family


def _age(at: float, since: float | None) -> float:
    return 0.0 if since is None else max(0.0, at - since)
