"""Steps that several processes try at once in a fresh cluster, but Ray allows only one to take."""

from collections.abc import Callable
from typing import TypeVar

import stamina

_ATTEMPTS = 10

T = TypeVar("T")


def retry_lost(step: Callable[[], T]) -> T:
    """Take the step. If another process wins the race, Ray raises ValueError: take it again."""
    retry = stamina.retry(
        on=ValueError, attempts=_ATTEMPTS, timeout=None, wait_initial=0.1, wait_max=1.0
    )
    return retry(step)()
