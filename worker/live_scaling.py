"""How many replicas an engine needs that has live calls and rows of batches. Pure.

Ray Serve asks in its controller, which has this file's text and cannot import ours: it imports
nothing of this project.
"""

from typing import Any

#: What a replica reports of itself: how many live calls it runs.
LIVE_CALLS_METRIC = "live_calls"


def replicas_wanted(context: Any) -> tuple[float, dict[str, Any]]:
    """How many replicas the load needs, as Serve's policies return it, and nothing to remember.

    Serve counts the calls with rows of batches. A live call has the seat of one row, and a call of
    a batch brings many.
    """
    running = context.current_num_replicas
    if not running:
        return context.target_num_replicas, {}
    of_batches = context.total_num_requests / context.config.get_target_ongoing_requests()
    reported = context.aggregated_metrics.get(LIVE_CALLS_METRIC, {})
    live = sum(reported.values())
    rows_per_call = 16
    of_live = live / (rows_per_call * context.config.get_target_ongoing_requests())
    return max(of_batches, of_live), {}
