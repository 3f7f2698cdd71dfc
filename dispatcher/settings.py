"""What the dispatcher must be told besides the shared addresses."""

from ipaddress import IPv4Network, IPv6Network
from typing import Annotated

from pydantic import Field, SecretStr

from shared.settings import SharedSettings

#: A bucket and a prefix in it. The slash at its end keeps `acme/` from meaning `acme-2/` as well.
InputPlace = Annotated[str, Field(pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/(.*/)?$")]


class DispatcherSettings(SharedSettings):
    """Quantities carry their unit in their name."""

    ray_address: str
    ray_token: SecretStr
    rows_per_slice: int = 128
    tokens_per_slice: int = 32_768
    #: How much a lane keeps ready before its job has said what it can take.
    ready_rows: int = 512
    lease_seconds: float = 10.0
    #: A lane job without a sign of life for this long is stopped and replaced.
    lane_job_silence_seconds: float = 60.0
    #: A lane whose jobs end this often without a committed row fails its batches.
    lane_job_attempts: int = 5
    #: The prefix of objects in our bucket that a tenant may name as its input.
    tenant_prefix: str = "inbox/{tenant}/"
    input_places: dict[str, tuple[InputPlace, ...]] = Field(
        default={},
        description='further places of inputs, as JSON: `{"acme": ["s3://acme-data/exports/"]}`; '
        "under `*` those of every tenant, with `{tenant}` for its name",
    )
    #: Batch messages in hand at once.
    messages_in_hand: int = Field(default=32, ge=1, le=1000)
    webhook_networks: tuple[IPv4Network | IPv6Network, ...] = ()
    #: For one attempt, all in all.
    webhook_timeout_seconds: float = Field(default=20.0, gt=0, le=30)
    #: Webhooks under way at once.
    webhook_attempts: int = Field(default=64, ge=1, le=1000)
    #: Of these, how many for one endpoint: a slow receiver must not hold up the others.
    webhook_attempts_per_endpoint: int = Field(default=4, ge=1)
