"""What vLLM's core says of itself at each step, counted for the operators' metrics. Pure."""

from collections.abc import Iterable
from typing import Any, NamedTuple

#: vLLM's `EngineCoreEventType.PREEMPTED`.
PREEMPTED = 3


class CoreNumbers(NamedTuple):
    """What a core has counted since its start, and how it was at its last step."""

    preemptions: int = 0
    #: Tokens of prompts that were looked for in the prefix cache, and those that were found.
    prefix_queries: int = 0
    prefix_hits: int = 0
    #: The part of the KV cache that is in use.
    kv_usage: float = 0.0
    #: Sequences that it computes, and those that it has and does not.
    running: int = 0
    waiting: int = 0


class CoreMeter:
    """Counts what one core says."""

    def __init__(self) -> None:
        self.numbers = CoreNumbers()

    def note(self, stats: Any, outputs: Iterable[Any]) -> None:
        """A step has ended. `stats` are vLLM's `SchedulerStats`, or None if it told none."""
        preempted = sum(event.type == PREEMPTED for one in outputs for event in one.events or ())
        found = self.numbers._replace(preemptions=self.numbers.preemptions + preempted)
        if stats is not None:
            cache = stats.prefix_cache_stats
            found = found._replace(
                prefix_queries=found.prefix_queries + cache.queries,
                prefix_hits=found.prefix_hits + cache.hits,
                kv_usage=stats.kv_cache_usage,
                running=stats.num_running_reqs,
                waiting=stats.num_waiting_reqs,
            )
        self.numbers = found
