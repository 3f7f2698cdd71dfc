"""What several processes do at once in a fresh cluster, and Ray lets only one of them do."""

from collections.abc import Callable
from typing import TypeVar

import stamina

_ATTEMPTS = 10

T = TypeVar("T")


def retry_lost(step: Callable[[], T]) -> T:
    """What the step returns; Ray tells who was too late by a ValueError, and lets it go on then."""
    retry = stamina.retry(
        on=ValueError, attempts=_ATTEMPTS, timeout=None, wait_initial=0.1, wait_max=1.0
    )
    return retry(step)()
