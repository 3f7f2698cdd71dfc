"""What every process must be told. Addresses have no defaults: a missing one stops the start."""

from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.storage import DEFAULT_REGION, Storage

THIRTY_DAYS = 2_592_000
NINETY_DAYS = 7_776_000
#: Where in our bucket a tenant puts the inputs that its messages name.
DEFAULT_TENANT_PREFIX = "inbox/{tenant}/"


class SharedSettings(BaseSettings):
    """Where the shared services are. Every process reads the same names."""

    model_config = SettingsConfigDict(
        env_prefix="BATCHYARD_", frozen=True, extra="forbid", hide_input_in_errors=True
    )

    amqp_url: SecretStr
    redis_url: SecretStr
    s3_endpoint: str = Field(description="http://host:port or https://host[:port]")
    s3_access_key: str
    s3_secret_key: SecretStr
    s3_bucket: str = "batchyard"
    s3_region: str = Field(
        default=DEFAULT_REGION,
        min_length=1,
        description="what the S3 server calls its region; every bucket that is read has to be "
        "there",
    )
    catalog: Path = Field(description="the YAML file that names models and pools")
    log_level: str = "INFO"
    lease_seconds: float = Field(
        default=10.0,
        gt=0,
        description="after so long another process does what one did that died or froze: the "
        "dispatcher's duties, and the relaying of messages",
    )
    service_user: str = Field(
        default="batchyard", description="the broker's name for us; it checks every message's"
    )
    declare_topology: bool = Field(
        default=True,
        description="make the exchanges and queues that the broker lacks; `false` only looks for "
        "them, where an operator loads what `batchyard topology --definitions` prints",
    )
    file_seconds: int = Field(
        default=THIRTY_DAYS, ge=3600, description="how long an input file is kept by default"
    )
    output_seconds: int = Field(
        default=THIRTY_DAYS, ge=3600, description="how long output files are kept by default"
    )
    max_input_bytes: int = Field(
        default=209_715_200, ge=1, description="of the input file of a batch"
    )
    max_rows_per_batch: int = Field(default=50_000, ge=1, description="requests of one batch")
    mixed_batches: bool = Field(
        default=False,
        description="let each line of an input name a model and an endpoint of its own; the "
        "gateway and the dispatcher need the same",
    )
    max_embedding_inputs: int = Field(
        default=50_000, ge=1, description="of all requests of a batch of embeddings together"
    )
    batches_per_hour: int = Field(
        default=2_000, ge=1, description="new batches of a tenant, by whatever door"
    )
    max_enqueued_requests: int = Field(
        default=1_000_000, ge=1, description="of all running batches of a tenant"
    )
    max_enqueued_tokens: int = Field(
        default=10_000_000_000,
        ge=1,
        description="prompt tokens of all running batches of a tenant for one model; "
        "a model's own `max_enqueued_tokens` in the catalog goes before it",
    )
    webhook_networks: tuple[IPv4Network | IPv6Network, ...] = Field(
        default=(),
        description='a JSON list such as ["10.1.0.0/16"]: private networks where webhook '
        "endpoints may be; the gateway and the dispatcher need the same",
    )


def open_storage(
    settings: SharedSettings,
    *,
    endpoint: str | None = None,
    patience_seconds: float | None = None,
    attempts: int = 5,
) -> Storage:
    """The fleet's bucket, as `Storage` has it; `endpoint` is another address of the same server."""
    return Storage(
        endpoint or settings.s3_endpoint,
        settings.s3_access_key,
        settings.s3_secret_key.get_secret_value(),
        settings.s3_bucket,
        region=settings.s3_region,
        patience_seconds=patience_seconds,
        attempts=attempts,
    )
