"""S3: one class that talks to an object store, and the errors that it raises."""

from shared.storage.errors import (
    ChangedError,
    ForbiddenError,
    LoginRefusedError,
    StorageRefusedError,
    why_unreadable,
)
from shared.storage.multipart import PART_BYTES, UPLOAD_BYTES, ReadBytes, Stored
from shared.storage.requests import Listed
from shared.storage.storage import DEFAULT_REGION, PROBES, READABLE, Storage

__all__ = [
    "DEFAULT_REGION",
    "PART_BYTES",
    "PROBES",
    "READABLE",
    "UPLOAD_BYTES",
    "ChangedError",
    "ForbiddenError",
    "Listed",
    "LoginRefusedError",
    "ReadBytes",
    "Storage",
    "StorageRefusedError",
    "Stored",
    "why_unreadable",
]
