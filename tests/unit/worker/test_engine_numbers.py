from types import SimpleNamespace
from typing import Any

from worker.engine_numbers import CoreMeter, CoreNumbers


def _stats(queries: int, hits: int, **changes: Any) -> Any:
    found = {"kv_cache_usage": 0.25, "num_running_reqs": 3, "num_waiting_reqs": 1, **changes}
    return SimpleNamespace(prefix_cache_stats=SimpleNamespace(queries=queries, hits=hits), **found)


def _output(*events: int) -> Any:
    return SimpleNamespace(events=[SimpleNamespace(type=one) for one in events])


def test_what_happened_is_added_up_and_the_last_step_says_how_it_is() -> None:
    meter = CoreMeter()

    meter.note(_stats(100, 40), [_output(1, 2), _output(3)])
    meter.note(_stats(10, 10, kv_cache_usage=0.5, num_waiting_reqs=0), [_output(3, 3)])
    # A step that tells nothing changes nothing.
    meter.note(None, [SimpleNamespace(events=None)])

    assert meter.numbers == CoreNumbers(
        preemptions=3, prefix_queries=110, prefix_hits=50, kv_usage=0.5, running=3, waiting=0
    )
