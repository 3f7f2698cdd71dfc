"""The variables that are deployed against the classes that read them.

Nothing else notices a misspelt one: a setting with a default would silently keep it.
"""

from collections.abc import Iterator, Mapping

from dispatcher.settings import DispatcherSettings
from gateway.settings import GatewaySettings
from shared.settings import SharedSettings
from worker.settings import WorkerSettings

#: What runs in which image, and reads its settings there.
READERS: Mapping[str, type[SharedSettings]] = {
    "batchyard/gateway": GatewaySettings,
    "batchyard/dispatcher": DispatcherSettings,
    "batchyard/worker": WorkerSettings,
    "batchyard/worker-cpu": WorkerSettings,
}
_PREFIX = "BATCHYARD_"


def wrong_names(image: str, names: set[str]) -> Iterator[str]:
    """Variables that nobody reads, and settings without a default that nobody sets."""
    fields = READERS[image.partition(":")[0]].model_fields
    known = {f"{_PREFIX}{name.upper()}" for name in fields}
    required = {f"{_PREFIX}{name.upper()}" for name, f in fields.items() if f.is_required()}
    ours = {name for name in names if name.startswith(_PREFIX)}
    yield from (f"nobody reads {name}" for name in sorted(ours - known))
    yield from (f"nobody sets {name}" for name in sorted(required - ours))
