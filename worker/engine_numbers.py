"""What vLLM's core says of itself at each step, counted for the operators' metrics. Pure."""

from collections.abc import Collection
from typing import Any, NamedTuple

#: vLLM's `EngineCoreEventType.PREEMPTED`.
PREEMPTED = 3


class CoreNumbers(NamedTuple):
    """What a core has counted since its start, and how it was at its last step."""

    preemptions: int = 0
    #: Tokens of prompts and answers that it has computed, and those of them that it had computed
    #: before a preemption. Without a prefix cache, vLLM does not tell the latter.
    computed_tokens: int = 0
    recomputed_tokens: int = 0
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

    def note(self, stats: Any, outputs: Collection[Any]) -> None:
        """A step has ended. `stats` are vLLM's `SchedulerStats`, or None if it told none."""
        preempted = sum(event.type == PREEMPTED for one in outputs for event in one.events or ())
        found = self.numbers._replace(
            preemptions=self.numbers.preemptions + preempted,
            computed_tokens=self.numbers.computed_tokens + sum(map(_computed, outputs)),
        )
        if stats is not None:
            cache = stats.prefix_cache_stats
            # The last token of each, which was sampled, is computed for the first time.
            again = cache.preempted_queries - cache.preempted_hits - cache.preempted_requests
            found = found._replace(
                computed_tokens=found.computed_tokens + again,
                recomputed_tokens=found.recomputed_tokens + again,
                prefix_queries=found.prefix_queries + cache.queries,
                prefix_hits=found.prefix_hits + cache.hits,
                kv_usage=stats.kv_cache_usage,
                running=stats.num_running_reqs,
                waiting=stats.num_waiting_reqs,
            )
        self.numbers = found


def _computed(output: Any) -> int:
    """The tokens of a sequence's step: those of its answer, and of its prompt with the first."""
    prompt = output.prefill_stats
    return len(output.new_token_ids) + (0 if prompt is None else int(prompt.num_computed_tokens))
