"""The metrics of one process: its HTTP calls, and its calls of other services.

Label values are statuses, lanes, routes and names, never anything that users wrote into a request.
"""

import hmac
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from shared.call_times import BOUNDS, Times, call_times

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
#: Label values of a sample, and its number.
Sample = tuple[Sequence[str], float]


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
        return generate_latest(self._registry) + exposition([service_calls(call_times())])


def may_scrape(authorization: str | None, token: str) -> bool:
    """Whether the header carries the token."""
    given = (authorization or "").encode("latin-1", "replace")
    return hmac.compare_digest(given, f"Bearer {token}".encode())


def exposition(families: Iterable[Metric]) -> bytes:
    """These families, as a scrape has them."""
    registry = CollectorRegistry()
    registry.register(_Once(families))
    return generate_latest(registry)


def service_calls(times: Iterable[Times]) -> Metric:
    """How long the process's calls of other services took."""
    family = HistogramMetricFamily(
        "batchyard_service_call_seconds",
        "Time of this process's calls of Redis, S3 and RabbitMQ, retries included for Redis.",
        labels=["service", "outcome"],
    )
    for one in times:
        total, buckets = 0, list[tuple[str, float]]()
        for bound, count in zip([*map(str, BOUNDS), "+Inf"], one.counts, strict=True):
            total += count
            buckets.append((bound, total))
        outcome = "ok" if one.is_ok else "error"
        family.add_metric([one.service, outcome], buckets=buckets, sum_value=one.seconds)
    return family


def gauge(name: str, text: str, labels: Sequence[str], samples: Iterable[Sample]) -> Metric:
    """A number that goes up and down."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, number in samples:
        family.add_metric(values, float(number))
    return family


def counter(name: str, text: str, labels: Sequence[str], samples: Iterable[Sample]) -> Metric:
    """A number that only grows; scrapes add `_total` to its name."""
    family = CounterMetricFamily(name, text, labels=labels)
    for values, number in samples:
        family.add_metric(values, float(number))
    return family


class _Once(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Metric]:
        yield from self._families
