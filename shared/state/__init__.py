"""Every state of the fleet, in Redis: one class, its nouns beside it, its scripts in Lua.

An index that can be rebuilt from S3: what must outlive Redis lies there as well.
"""

from shared.state.batches import Acceptance, BatchRecord
from shared.state.files import FileRecord
from shared.state.lanes import JobRecord
from shared.state.slices import PlannedSlice
from shared.state.state import State
from shared.state.uploads import PartRecord, UploadRecord

__all__ = [
    "Acceptance",
    "BatchRecord",
    "FileRecord",
    "JobRecord",
    "PartRecord",
    "PlannedSlice",
    "State",
    "UploadRecord",
]
