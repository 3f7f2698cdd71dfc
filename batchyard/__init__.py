"""Batchyard from Python: tables through models, and calls that are collected into batches."""

from typing import TYPE_CHECKING, Any

from batchyard.batch import Batch, submit
from batchyard.errors import BatchFailedError, RowsFailed
from batchyard.options import Options
from batchyard.running import arun, run
from shared.errors import BatchyardError, InvalidInputError, NotFoundError, TransientError

if TYPE_CHECKING:
    from batchyard.calls.client import AsyncBatchClient

__all__ = [
    "AsyncBatchClient",
    "Batch",
    "BatchFailedError",
    "BatchyardError",
    "InvalidInputError",
    "NotFoundError",
    "Options",
    "RowsFailed",
    "TransientError",
    "arun",
    "run",
    "submit",
]


def __getattr__(name: str) -> Any:
    if name != "AsyncBatchClient":
        raise AttributeError(f"module 'batchyard' has no attribute '{name}'")
    # It needs OpenAI's library, which not everybody has.
    from batchyard.calls.client import AsyncBatchClient

    return AsyncBatchClient
