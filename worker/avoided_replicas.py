"""Replicas that have given rows back: calls of this process go to others for a while.

Belongs into a module of its own: Serve copies the one of a request router by value.
"""

import math
import time

_AVOID_SECONDS = 5.0
#: Until when, by Serve's names of them, on the monotonic clock.
_until: dict[str, float] = {}


def avoid(replica: str) -> None:
    """Let calls of this process go to other replicas for a while."""
    now = time.monotonic()
    for one in [one for one, until in _until.items() if until <= now]:
        del _until[one]
    _until[replica] = now + _AVOID_SECONDS


def is_avoided(replica: str) -> bool:
    """Whether calls of this process go to other replicas, if there are any."""
    return time.monotonic() < _until.get(replica, -math.inf)
