"""Settings of the dispatcher besides the shared ones."""

from typing import Annotated

from pydantic import Field, SecretStr

from shared.settings import DEFAULT_TENANT_PREFIX, NINETY_DAYS, SharedSettings

#: A bucket and a prefix in it. The slash at its end keeps `acme/` from meaning `acme-2/` as well.
InputPlace = Annotated[str, Field(pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/(.*/)?$")]


class DispatcherSettings(SharedSettings):
    """Quantities carry their unit in their name."""

    ray_address: str
    ray_token: SecretStr
    rows_per_slice: int = 128
    tokens_per_slice: int = 32_768
    #: Rows that a lane keeps ready before its job has said how many it can take.
    ready_rows: int = 512
    #: A lane job that gives no sign of life for this long is stopped and replaced.
    lane_job_silence_seconds: float = 60.0
    #: A lane fails its batches after this many jobs in a row that ended without a committed row.
    lane_job_attempts: int = 5
    #: The prefix in our bucket under which a tenant may name objects as inputs.
    tenant_prefix: str = DEFAULT_TENANT_PREFIX
    tag_results: bool = Field(
        default=False,
        description="give each output and error file in S3 the object tag `tenant`, so that a "
        "tenant's S3 login can be allowed to read its own; the server has to support tags",
    )
    input_places: dict[str, tuple[InputPlace, ...]] = Field(
        default={},
        description='further places of inputs, as JSON: `{"acme": ["s3://acme-data/exports/"]}`; '
        "`*` stands for every tenant, and `{tenant}` for its name",
    )
    batch_seconds: int = Field(
        default=NINETY_DAYS,
        ge=3600,
        description="how long a batch is kept after its end; longer while its files are kept",
    )
    #: Batch messages that are handled at once.
    messages_in_hand: int = Field(default=128, ge=1, le=1000)
    #: For one whole attempt.
    webhook_timeout_seconds: float = Field(default=20.0, gt=0, le=30)
    #: Webhook attempts at once.
    webhook_attempts: int = Field(default=64, ge=1, le=1000)
    #: Of these, for one endpoint: a slow receiver must not hold up the others.
    webhook_attempts_per_endpoint: int = Field(default=4, ge=1)
    #: Time between two progress events of a batch, at least a second.
    progress_seconds: float = Field(default=1.0, ge=1)
    #: A JSON list of tenants that get events in CloudEvents' binary mode; ["*"] for all.
    binary_event_tenants: frozenset[str] = frozenset()
    #: How long the URLs of result files in a batch's last event are valid; 0 for no URLs.
    event_url_seconds: int = Field(default=0, ge=0, le=604_800)
    #: Where subscribers reach the S3 server, if not at `BATCHYARD_S3_ENDPOINT`.
    event_url_endpoint: str | None = None
    event_results_bytes: int = Field(
        default=65_536,
        ge=0,
        le=262_144,
        description="how large both result files together may be to be included in a batch's last "
        "event, if the submission asks for them; 0 for never",
    )
    health_host: str = "127.0.0.1"
    #: The port of `/healthz`, `/readyz` and, if there is a token, `/metrics`; none by default.
    health_port: int | None = Field(default=None, ge=0, le=65_535)
    metrics_token: SecretStr | None = Field(default=None, min_length=16)
