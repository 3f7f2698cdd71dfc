"""Every state of the fleet, in Redis: one class, its nouns beside it, its scripts in Lua.

An index that can be rebuilt from S3: what must outlive Redis lies there as well.
"""

from shared.state.batch_record import BatchRecord
from shared.state.batches import Acceptance, NewBatch, PackedAcceptance, Pin, Start
from shared.state.files import FileRecord
from shared.state.keys import KeyRecord
from shared.state.lanes import JobRecord
from shared.state.limits import (
    KnownBatch,
    NewBatchParams,
    QueueFullError,
    Quota,
    QuotaKind,
    Rate,
    RateStatus,
)
from shared.state.state import MovedError, State
from shared.state.uploads import PartRecord, UploadRecord

__all__ = [
    "Acceptance",
    "BatchRecord",
    "FileRecord",
    "JobRecord",
    "KeyRecord",
    "KnownBatch",
    "MovedError",
    "NewBatch",
    "NewBatchParams",
    "PackedAcceptance",
    "PartRecord",
    "Pin",
    "QueueFullError",
    "Quota",
    "QuotaKind",
    "Rate",
    "RateStatus",
    "Start",
    "State",
    "UploadRecord",
]
