"""The metrics: every name that Prometheus sees, and how counts become metric families.

Label values are statuses, lanes, routes and names of services, never anything that users wrote.
"""

import hmac
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.state.census import FleetCounts, LaneCount

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

_LANE: tuple[tuple[str, str, Callable[[LaneCount], float]], ...] = (
    ("batches", "Running batches that are not paused.", lambda lane: lane.batches),
    ("ready_slices", "Slices that are ready to be claimed.", lambda lane: lane.ready_slices),
    ("claimed_slices", "Slices that the lane job has claimed.", lambda lane: lane.claimed_slices),
    ("rows", "Rows that the current lane job has committed.", lambda lane: lane.rows),
    ("failed", "1 if the engine cannot start.", lambda lane: lane.has_failed),
)


class Calls:
    """The HTTP calls of one gateway."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "batchyard_http_requests",
            "HTTP calls that were answered.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "batchyard_http_request_seconds",
            "Time from the first byte of a call to the last byte of its answer.",
            ("method", "route"),
            buckets=_BUCKETS,
            registry=self._registry,
        )

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one call; `route` is the template, empty if none matched."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def exposition(self) -> bytes:
        """The body of a scrape."""
        return generate_latest(self._registry)


def fleet_exposition(
    counted: FleetCounts | None, *, up: Mapping[str, bool], dead_letters: int | None, leads: bool
) -> bytes:
    """The body of a scrape of a dispatcher. What could not be counted is left out."""
    families: list[Metric] = [
        _gauge("batchyard_service_up", "1 if the service answers.", "service", up.items()),
        _gauge("batchyard_dispatcher_leads", "1 if this dispatcher leads.", "", [("", leads)]),
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
    """Whether the header carries the token."""
    given = (authorization or "").encode("latin-1", "replace")
    return hmac.compare_digest(given, f"Bearer {token}".encode())


class _Once(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def _families(counted: FleetCounts) -> Iterator[Metric]:
    at = counted.at
    yield _gauge(
        "batchyard_batches",
        "Batches in each status that is not final.",
        "status",
        [(status, found.number) for status, found in counted.live.items()],
    )
    yield _gauge(
        "batchyard_oldest_batch_seconds",
        "Time since the batch that has been longest in the status entered it.",
        "status",
        [(status, _age(at, found.since)) for status, found in counted.live.items()],
    )
    ended = CounterMetricFamily(
        "batchyard_batches_ended", "Batches that have ended.", labels=["status"]
    )
    for status, number in counted.ended.items():
        ended.add_metric([status], number)
    yield ended
    yield _gauge(
        "batchyard_outbox_entries",
        "Outbox entries that are not published yet.",
        "outbox",
        [(box, found.number) for box, found in counted.outboxes.items()],
    )
    yield _gauge(
        "batchyard_outbox_oldest_seconds",
        "Time since the oldest outbox entry was written.",
        "outbox",
        [(box, _age(at, found.since)) for box, found in counted.outboxes.items()],
    )
    if counted.next_window_at is not None:
        yield _gauge(
            "batchyard_next_window_seconds",
            "Time until the next completion window of a live batch ends.",
            "",
            [("", counted.next_window_at - at)],
        )
    yield _gauge(
        "batchyard_webhooks_overdue_seconds",
        "Time since the first webhook delivery that waits was due.",
        "",
        [("", _age(at, counted.webhooks_due_at))],
    )
    yield _gauge(
        "batchyard_redis_memory_bytes", "Memory that Redis uses.", "", [("", counted.memory_bytes)]
    )
    yield _gauge(
        "batchyard_redis_max_memory_bytes",
        "Memory at which Redis refuses writes, or the memory of its machine if it has no limit.",
        "",
        [("", counted.max_memory_bytes)],
    )
    yield from _lane_families(counted)


def _lane_families(counted: FleetCounts) -> Iterator[Metric]:
    for name, text, number in _LANE:
        values = [(lane, number(count)) for lane, count in counted.lanes.items()]
        yield _gauge(f"batchyard_lane_{name}", text, "lane", values)
    beats = {lane: count.job_beat_at for lane, count in counted.lanes.items()}
    yield _gauge(
        "batchyard_lane_job_silent_seconds",
        "Time since the lane job's last sign of life.",
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
