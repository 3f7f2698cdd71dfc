"""The variables that are deployed against the classes that read them.

Nothing else notices a misspelt one: a setting with a default would silently keep it.
"""

from collections.abc import Iterator, Mapping

from cli.fleet.environments import SECRET_SETTINGS
from dispatcher.settings import DispatcherSettings
from gateway.settings import GatewaySettings
from shared.settings import StoreSettings
from worker.settings import LOGINS_VARIABLE, WorkerSettings

#: What runs in which image, and reads its settings there.
READERS: Mapping[str, type[StoreSettings]] = {
    "batchyard/gateway": GatewaySettings,
    "batchyard/dispatcher": DispatcherSettings,
    "batchyard/worker": WorkerSettings,
    "batchyard/worker-cpu": WorkerSettings,
}
_PREFIX = "BATCHYARD_"


def wrong_names(image: str, names: set[str], files: frozenset[str] = frozenset()) -> Iterator[str]:
    """Variables that nobody reads, and settings without a default that nobody sets.

    A container of Ray that has no folder with secrets runs engines, and must have no login.
    `files` are the settings in such a folder.
    """
    settings = READERS[image.partition(":")[0]]
    fields = settings.model_fields
    known = {f"{_PREFIX}{name.upper()}" for name in fields}
    required = {f"{_PREFIX}{name.upper()}" for name, f in fields.items() if f.is_required()}
    ours = {name for name in names if name.startswith(_PREFIX)} | files
    if settings is WorkerSettings:
        known.add(LOGINS_VARIABLE)
        if LOGINS_VARIABLE not in names:
            required = set()
            yield from (f"engines have {name}" for name in sorted(ours & SECRET_SETTINGS))
    yield from (f"nobody reads {name}" for name in sorted(ours - known))
    yield from (f"nobody sets {name}" for name in sorted(required - ours))
