from types import SimpleNamespace
from typing import Any

from worker.engine_numbers import CoreMeter, CoreNumbers


def _stats(queries: int, hits: int, again: tuple[int, int, int] = (0, 0, 0), **changes: Any) -> Any:
    found = {"kv_cache_usage": 0.25, "num_running_reqs": 3, "num_waiting_reqs": 1, **changes}
    cache = SimpleNamespace(
        queries=queries,
        hits=hits,
        preempted_requests=again[0],
        preempted_queries=again[1],
        preempted_hits=again[2],
    )
    return SimpleNamespace(prefix_cache_stats=cache, **found)


def _output(*events: int, prompt: int | None = None, tokens: int = 0) -> Any:
    return SimpleNamespace(
        events=[SimpleNamespace(type=one) for one in events],
        prefill_stats=prompt and SimpleNamespace(num_computed_tokens=prompt),
        new_token_ids=[0] * tokens,
    )


def test_what_happened_is_added_up_and_the_last_step_says_how_it_is() -> None:
    meter = CoreMeter()

    meter.note(_stats(100, 40), [_output(1, 2), _output(3)])
    meter.note(_stats(10, 10, kv_cache_usage=0.5, num_waiting_reqs=0), [_output(3, 3)])
    # A step that tells nothing changes nothing.
    meter.note(None, [_output()])

    assert meter.numbers == CoreNumbers(
        preemptions=3, prefix_queries=110, prefix_hits=50, kv_usage=0.5, running=3, waiting=0
    )


def test_what_is_computed_again_after_a_preemption_is_counted_apart() -> None:
    meter = CoreMeter()

    meter.note(_stats(100, 40), [_output(prompt=60, tokens=1)])
    # Of 122 tokens of two sequences that were put back, the cache still had 48. The last one of
    # each was not computed before.
    meter.note(_stats(0, 0, again=(2, 122, 48)), [_output(3), _output(tokens=4)])

    assert meter.numbers.computed_tokens == 60 + 1 + 4 + 72
    assert meter.numbers.recomputed_tokens == 72
