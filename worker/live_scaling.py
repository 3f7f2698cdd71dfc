"""How many replicas an engine needs for its live calls and its rows of batches. Pure.

Ray Serve asks in its controller, which has this file's text and cannot import ours: it imports
nothing of this project.
"""

from typing import Any

#: What a replica reports of itself: which part of its seats its live calls would fill, and how many
#: replicas the batches need, as the lane job has told it.
LIVE_METRIC = "live_part"
NEEDED_METRIC = "replicas_needed"

#: Another replica starts when live calls have this part of the seats: until it runs, calls come.
_FULL = 0.75
#: How long batches have needed more replicas before they get them.
_PATIENCE_SECONDS = 10.0
#: A need that was told holds for so long: reports of a busy replica come late.
_NEEDED_SECONDS = 60.0
#: In the policy's own state: since when batches need more, and what they needed last and when.
_SINCE, _NEEDED = "batchyard_needed_since", "batchyard_needed"


def replicas_wanted(context: Any) -> tuple[float, dict[str, Any]]:
    """How many replicas the load needs, as Serve's policies return it, and what to remember.

    Live calls get theirs at once. Batches get what they need beside them, after a while, and keep
    what they have as long as their calls fill it. Serve counts these calls, each of many rows.
    """
    running, target = context.current_num_replicas, context.target_num_replicas
    if not running:
        return target, {}
    live = sum(_newest(context, LIVE_METRIC)) / _FULL
    filled = context.total_num_requests / context.config.get_target_ongoing_requests()
    needed, state = _needed(context)
    if needed is None:
        # A lane job of an older version tells nothing.
        needed = filled
    kept = min(float(target), max(live, filled))
    wanted = max(kept, live + min(filled, needed))
    if wanted <= max(target, live):
        return wanted, state
    since = context.policy_state.get(_SINCE, context.current_time)
    if context.current_time - since >= _PATIENCE_SECONDS:
        return wanted, state
    return max(kept, live, min(wanted, float(target))), {**state, _SINCE: since}


def _needed(context: Any) -> tuple[float | None, dict[str, Any]]:
    """What batches need, None if nobody has told it of late; and what to remember of it."""
    now = context.current_time
    if told := _newest(context, NEEDED_METRIC):
        needed = max(told)
        return needed, {_NEEDED: (needed, now)}
    needed, at = context.policy_state.get(_NEEDED, (None, 0.0))
    if needed is None or now - at > _NEEDED_SECONDS:
        return None, {}
    return needed, {_NEEDED: (needed, at)}


def _newest(context: Any, metric: str) -> list[float]:
    """What each replica has reported last."""
    reported = (context.raw_metrics or {}).get(metric, {})
    return [series[-1].value for series in reported.values() if series]
