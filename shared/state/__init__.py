"""The fleet's state in Redis: one class, one module per noun, and the scripts in Lua.

Redis is an index that can be rebuilt from S3. Whatever must survive the loss of Redis is in S3 too.
"""

from shared.state.batch_record import BatchRecord
from shared.state.batches import Acceptance, NewBatch, PackedAcceptance, Pin, Start
from shared.state.files import FileRecord
from shared.state.keys import Admission, Expired, KeyRecord
from shared.state.lanes import Backlog, JobRecord
from shared.state.limits import (
    Exhausted,
    KnownBatch,
    NewBatchParams,
    QueueFullError,
    Quota,
    QuotaKind,
    Rate,
    RateStatus,
)
from shared.state.live_calls import LiveCallLimits, TooManyCalls
from shared.state.pipelines import PipelineRecord
from shared.state.state import Bells, MovedError, State
from shared.state.streams import Stream, Streams
from shared.state.tenants import Usage
from shared.state.uploads import PartRecord, UploadRecord

__all__ = [
    "Acceptance",
    "Admission",
    "Backlog",
    "BatchRecord",
    "Bells",
    "Exhausted",
    "Expired",
    "FileRecord",
    "JobRecord",
    "KeyRecord",
    "KnownBatch",
    "LiveCallLimits",
    "MovedError",
    "NewBatch",
    "NewBatchParams",
    "PackedAcceptance",
    "PartRecord",
    "Pin",
    "PipelineRecord",
    "QueueFullError",
    "Quota",
    "QuotaKind",
    "Rate",
    "RateStatus",
    "Start",
    "State",
    "Stream",
    "Streams",
    "TooManyCalls",
    "UploadRecord",
    "Usage",
]
