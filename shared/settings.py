"""Settings of every process. Addresses have no defaults: without one, a process does not start."""

from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.storage import DEFAULT_REGION, Storage

THIRTY_DAYS = 2_592_000
NINETY_DAYS = 7_776_000
#: Where tenants put inputs that their messages name.
DEFAULT_TENANT_PREFIX = "inbox/{tenant}/"


class SharedSettings(BaseSettings):
    """The shared services and limits. Every process reads the same variables."""

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
        description="the S3 server's name of its region; every bucket that is read has to be in it",
    )
    catalog: Path = Field(description="the YAML file that names models and pools")
    log_level: str = "INFO"
    lease_seconds: float = Field(
        default=10.0,
        gt=0,
        description="how long after a process died or froze another one takes over its work: the "
        "dispatcher's duties, and relaying messages",
    )
    service_user: str = Field(
        default="batchyard",
        description="our user name on the broker, which checks it in every message",
    )
    declare_topology: bool = Field(
        default=True,
        description="declare the exchanges and queues that the broker lacks; `false` only checks "
        "them, for brokers that load what `batchyard topology --definitions` prints",
    )
    file_seconds: int = Field(
        default=THIRTY_DAYS, ge=3600, description="how long an input file is kept by default"
    )
    output_seconds: int = Field(
        default=THIRTY_DAYS, ge=3600, description="how long output files are kept by default"
    )
    max_input_bytes: int = Field(
        default=209_715_200, ge=1, description="size of a batch's input file"
    )
    max_rows_per_batch: int = Field(default=50_000, ge=1, description="requests of one batch")
    mixed_batches: bool = Field(
        default=False,
        description="let each line of an input name its own model and endpoint; the gateway and "
        "the dispatcher need the same value",
    )
    max_embedding_inputs: int = Field(
        default=50_000, ge=1, description="inputs of all requests of an embeddings batch together"
    )
    batches_per_hour: int = Field(
        default=2_000, ge=1, description="new batches of a tenant, over HTTP and the bus together"
    )
    max_enqueued_requests: int = Field(
        default=1_000_000, ge=1, description="requests of all running batches of a tenant"
    )
    max_enqueued_tokens: int = Field(
        default=10_000_000_000,
        ge=1,
        description="prompt tokens of all running batches of a tenant for one model; "
        "a model's own `max_enqueued_tokens` in the catalog overrides it",
    )
    webhook_networks: tuple[IPv4Network | IPv6Network, ...] = Field(
        default=(),
        description='a JSON list such as ["10.1.0.0/16"]: private networks where webhook '
        "endpoints may be; the gateway and the dispatcher need the same value",
    )


def open_storage(
    settings: SharedSettings,
    *,
    endpoint: str | None = None,
    patience_seconds: float | None = None,
    attempts: int = 5,
) -> Storage:
    """Open the fleet's bucket; `endpoint` is another address of the same server."""
    return Storage(
        endpoint or settings.s3_endpoint,
        settings.s3_access_key,
        settings.s3_secret_key.get_secret_value(),
        settings.s3_bucket,
        region=settings.s3_region,
        patience_seconds=patience_seconds,
        attempts=attempts,
    )
