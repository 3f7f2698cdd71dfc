"""The settings of lane jobs and waves, without RabbitMQ: nothing inside Ray talks to it.

What is not secret stands in the environment of Ray's nodes, which engines inherit. Logins and the
secret of the salts are files, in a folder that only nodes with the resource `stores` need.
"""

import os
from ipaddress import IPv4Network, IPv6Network
from typing import Self

from pydantic import Field, SecretStr

from shared.cache_salt import derived_secret
from shared.settings import ENGINE_DEATHS_PER_DAY, StoreSettings

#: Names the folder: one file for each secret setting, with the name of its variable.
LOGINS_VARIABLE = "BATCHYARD_LOGINS"


#: Where the setting says nothing.
_LEAST_LINGER_SECONDS = 300.0


class WorkerSettings(StoreSettings):
    """Quantities have their unit in their name."""

    #: A claim that is not renewed for this long goes back to its lane.
    claim_seconds: float = 30.0
    linger_seconds: float | None = Field(
        default=None,
        ge=0,
        description="how long a lane job stays when its lane has no work; until then new work "
        "starts at once. Without it, as long as the model's idle engine: its `idle_seconds`, and "
        "at least 300",
    )
    #: How many rows the lane job runs itself, because a Ray Data execution takes seconds to start.
    direct_rows: int = 64
    #: A wave takes what its lane runs in about this time. Starting one takes 3 to 6 seconds.
    wave_seconds: float = 30.0
    mappers_per_wave: int | None = Field(
        default=None,
        ge=1,
        description="how many processes a wave has; without it, two where the lane job's machine "
        "has at least eight processors, otherwise one",
    )
    rows_per_engine_call: int | None = Field(
        default=None,
        ge=1,
        description="how many rows one call to the engine carries; without it, a quarter of the "
        "engine's seats, half of those of a model that gives vectors, at least 16 and at most 256",
    )
    #: When this many engines have died of a batch's rows, none of its rows is tried alone any more.
    engine_deaths_per_batch: int = Field(default=40, ge=1)
    #: When a lane's engine has died this often in a row without a result, its batches fail.
    lane_engine_deaths: int = Field(default=12, ge=5)
    #: Of a tenant of whose requests so many engines died today, none is tried alone any more.
    max_engine_deaths_per_day: int = Field(default=ENGINE_DEATHS_PER_DAY, ge=0)
    #: Publish an event for each committed slice. There are many of them.
    slice_events: bool = False
    media_networks: tuple[IPv4Network | IPv6Network, ...] = Field(
        default=(),
        description="private networks where the hosts of a model's `media_domains` may be, as a "
        'JSON list such as `["10.1.0.0/16"]`; without it, only public addresses are called',
    )
    #: How long the download of one image, sound or video may take.
    media_seconds: float = Field(default=30.0, gt=0)
    cache_secret: SecretStr | None = Field(
        default=None,
        description="what keeps tenants apart in the engines' prefix caches; without it, a secret "
        "that follows from the S3 login's",
    )

    @classmethod
    def read(cls) -> Self:
        """The settings of this process; a variable goes before a file of the same name."""
        return cls(_secrets_dir=os.environ.get(LOGINS_VARIABLE) or None)

    @property
    def cache_key(self) -> bytes:
        """The secret for the salts of tenants; an empty one counts as none."""
        given = self.cache_secret.get_secret_value() if self.cache_secret else ""
        return given.encode() or derived_secret(self.s3_secret_key.get_secret_value().encode())

    def linger(self, idle_seconds: float) -> float:
        """How long a lane job stays without work, if its idle engine stays for `idle_seconds`.

        A batch that finds a warm engine does not wait for a job to start, which takes seconds.
        """
        if self.linger_seconds is not None:
            return self.linger_seconds
        return max(_LEAST_LINGER_SECONDS, idle_seconds)
