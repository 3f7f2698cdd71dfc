"""The settings of lane jobs besides the shared ones. Ray nodes have them in their environment."""

from pydantic import Field, SecretStr

from shared.settings import SharedSettings
from worker.cache_salt import derived_secret
from worker.engine_sizes import ROWS_PER_ENGINE_CALL


class WorkerSettings(SharedSettings):
    """Quantities have their unit in their name."""

    #: A claim that is not renewed for this long goes back to its lane.
    claim_seconds: float = 30.0
    #: How long a lane job stays when its lane has no work. Until then new work starts at once.
    linger_seconds: float = 300.0
    #: How many rows the lane job runs itself, because a Ray Data execution takes seconds to start.
    direct_rows: int = 64
    #: A wave takes what its lane runs in about this time. Starting one takes 3 to 6 seconds.
    wave_seconds: float = 30.0
    #: How many rows one call to the engine carries.
    rows_per_engine_call: int = ROWS_PER_ENGINE_CALL
    #: When this many engines have died of a batch's rows, none of its rows is tried alone any more.
    engine_deaths_per_batch: int = Field(default=40, ge=1)
    #: When a lane's engine has died this often in a row without a result, its batches fail.
    lane_engine_deaths: int = Field(default=12, ge=5)
    #: Publish an event for each committed slice. There are many of them.
    slice_events: bool = False
    cache_secret: SecretStr | None = Field(
        default=None,
        description="what keeps tenants apart in the engines' prefix caches; without it, a secret "
        "that follows from the S3 login's",
    )

    @property
    def cache_key(self) -> bytes:
        """The secret for the salts of tenants; an empty one counts as none."""
        given = self.cache_secret.get_secret_value() if self.cache_secret else ""
        return given.encode() or derived_secret(self.s3_secret_key.get_secret_value().encode())
