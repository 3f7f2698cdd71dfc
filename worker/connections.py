"""The outside things of one worker process, from its environment: each Ray process has its own."""

from shared.state import State
from shared.storage import Storage
from worker.settings import WorkerSettings


def open_state(settings: WorkerSettings) -> State:
    """A connection to Redis; belongs to the event loop that first uses it."""
    return State(settings.redis_url.get_secret_value())


def open_storage(settings: WorkerSettings) -> Storage:
    """The fleet's bucket."""
    return Storage(
        settings.s3_endpoint,
        settings.s3_access_key,
        settings.s3_secret_key.get_secret_value(),
        settings.s3_bucket,
    )


def read_settings() -> WorkerSettings:
    """The settings of this process."""
    return WorkerSettings()
