"""The settings of every process. Addresses have no defaults: a missing one stops the start."""

from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.input_places import InputPlaces
from shared.storage import DEFAULT_REGION, Storage
from shared.tenants import TenantSettings

TEN_MINUTES = 600
THIRTY_DAYS = 2_592_000
NINETY_DAYS = 7_776_000
#: How many engines may die of one tenant's requests in a day.
ENGINE_DEATHS_PER_DAY = 200
#: Where in our bucket a tenant puts the inputs that its messages name.
DEFAULT_TENANT_PREFIX = "inbox/{tenant}/"
_TENANT_PREFIX = r"^[^*?$]*\{tenant\}/[^*?$]*$"
#: A bucket and a prefix in it. The slash at its end keeps `acme/` from meaning `acme-2/` as well.
InputPlace = Annotated[str, Field(pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/(.*/)?$")]


class TenantDefaults(BaseSettings):
    """What holds for a tenant for which `batchyard tenants set` has set nothing else.

    Gateway and dispatcher read all of it, so that each knows what holds.
    """

    model_config = SettingsConfigDict(
        env_prefix="BATCHYARD_", frozen=True, hide_input_in_errors=True
    )

    tenant_weights: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default={},
        description='how large the shares of tenants are, as JSON: `{"acme": 2}` gives acme twice '
        "the share of an engine that a tenant without a weight gets",
    )
    requests_per_minute: int = Field(
        default=100_000, ge=1, description="calls of a tenant in a minute"
    )
    file_requests_per_minute: int = Field(
        default=1_000, ge=1, description="those of them to `/v1/files` and `/v1/uploads`"
    )
    batches_per_hour: int = Field(
        default=2_000, ge=1, description="new batches of a tenant, over HTTP and the bus"
    )
    max_enqueued_requests: int = Field(
        default=1_000_000, ge=1, description="requests of all running batches of a tenant"
    )
    max_enqueued_tokens: int = Field(
        default=10_000_000_000,
        ge=1,
        description="prompt tokens of all running batches of a tenant for one model; "
        "a model's own `max_enqueued_tokens` in the catalog takes precedence",
    )
    max_kept_batches: int = Field(
        default=200_000,
        ge=1,
        description="batches of a tenant that are kept, running and ended: each takes some "
        "hundred bytes of Redis until `BATCHYARD_BATCH_SECONDS` have passed, and its files some KB",
    )
    max_stored_bytes: int = Field(
        default=2_748_779_069_440,
        ge=0,
        description="bytes of a tenant's files, and of the parts of its uploads",
    )
    max_event_streams: int = Field(
        default=1_000, ge=0, description="event streams that a tenant has open at once"
    )
    max_downloads: int = Field(
        default=100, ge=0, description="downloads of a tenant at once, of files and of results"
    )
    live_requests_per_minute: int = Field(
        default=10_000, ge=1, description="live calls of a tenant in a minute"
    )
    live_tokens_per_minute: int = Field(
        default=10_000_000,
        ge=1,
        description="tokens of a tenant's live calls in a minute: of prompts, as far as their "
        "length tells, and the most that answers may have",
    )
    max_live_calls: int = Field(
        default=1_000, ge=0, description="live calls that a tenant makes at once"
    )
    max_engine_deaths_per_day: int = Field(
        default=ENGINE_DEATHS_PER_DAY,
        ge=0,
        description="engines that die of a tenant's requests in a day (UTC) before it can create "
        "no more batches, and before a request of which one died is not tried alone",
    )
    max_webhook_endpoints: int = Field(
        default=10, ge=0, le=50, description="webhook endpoints of one tenant"
    )
    max_custom_id_characters: int = Field(
        default=512, ge=1, le=512, description="length of the `custom_id` of a request"
    )

    @property
    def tenant(self) -> TenantSettings:
        """These settings as those of a tenant."""
        return TenantSettings(
            weight=1.0,
            requests_per_minute=self.requests_per_minute,
            file_requests_per_minute=self.file_requests_per_minute,
            batches_per_hour=self.batches_per_hour,
            enqueued_requests=self.max_enqueued_requests,
            enqueued_tokens=self.max_enqueued_tokens,
            kept_batches=self.max_kept_batches,
            stored_bytes=self.max_stored_bytes,
            event_streams=self.max_event_streams,
            downloads=self.max_downloads,
            live_requests_per_minute=self.live_requests_per_minute,
            live_tokens_per_minute=self.live_tokens_per_minute,
            live_calls=self.max_live_calls,
            engine_deaths_per_day=self.max_engine_deaths_per_day,
            webhook_endpoints=self.max_webhook_endpoints,
            custom_id_characters=self.max_custom_id_characters,
        )


class StoreSettings(BaseSettings):
    """Where Redis, S3 and the catalog are: all that processes inside Ray share with the others."""

    model_config = SettingsConfigDict(
        env_prefix="BATCHYARD_", frozen=True, extra="forbid", hide_input_in_errors=True
    )

    redis_url: SecretStr = Field(description="Redis's address, with the login of the process")
    s3_endpoint: str = Field(
        description="the S3 server's address: http://host:port or https://host[:port]"
    )
    s3_access_key: str = Field(description="access key of the process's S3 login")
    s3_secret_key: SecretStr = Field(description="secret key of the process's S3 login")
    s3_bucket: str = Field(default="batchyard", description="the bucket that holds everything")
    s3_region: str = Field(
        default=DEFAULT_REGION,
        min_length=1,
        description="the S3 server's region; every bucket that Batchyard reads must be in it",
    )
    catalog: Path = Field(description="the YAML file that names models and pools")
    log_level: str = Field(default="INFO", description="`DEBUG`, `INFO`, `WARNING` or `ERROR`")
    tenant_prefix: str = Field(
        default=DEFAULT_TENANT_PREFIX,
        # Without the name, or the slash behind it, tenants would read each other's objects.
        pattern=_TENANT_PREFIX,
        description="the prefix of objects in Batchyard's bucket that a tenant may name as inputs "
        "and as media, with `{tenant}/` in it; set the same for all processes",
    )
    input_places: dict[str, tuple[InputPlace, ...]] = Field(
        default={},
        description='further places of inputs and media, as JSON: `{"acme": '
        '["s3://acme-data/exports/"]}`; `*` is for every tenant, and `{tenant}` stands for its '
        "name; set the same for all processes",
    )

    @property
    def places(self) -> InputPlaces:
        """The places in S3 of each tenant's inputs and media."""
        return InputPlaces(self.s3_bucket, self.tenant_prefix, self.input_places)


class SharedSettings(StoreSettings, TenantDefaults):
    """What gateway and dispatcher must agree on."""

    amqp_url: SecretStr = Field(description="RabbitMQ's address, with the service user's login")
    lease_seconds: float = Field(
        default=10.0,
        gt=0,
        description="how long after a process died or froze another one takes over its duties: "
        "leading as dispatcher, and relaying messages",
    )
    trail_file: Path | None = Field(
        default=None,
        description="the file to which a JSON line is added for each act that changes something; "
        "without it, standard output",
    )
    service_user: str = Field(default="batchyard", description="Batchyard's own login at RabbitMQ")
    declare_topology: bool = Field(
        default=True,
        description="create missing exchanges and queues in RabbitMQ; with `false` only check "
        "them, if an operator loads the output of `batchyard topology --definitions`",
    )
    file_seconds: int = Field(
        default=THIRTY_DAYS,
        ge=3600,
        description="how long an input file is kept unless its upload says otherwise",
    )
    output_seconds: int = Field(
        default=THIRTY_DAYS,
        ge=3600,
        description="how long output files are kept unless the batch says otherwise",
    )
    max_input_bytes: int = Field(
        default=209_715_200, ge=1, description="size of a batch's input file"
    )
    max_rows_per_batch: int = Field(default=50_000, ge=1, description="requests of one batch")
    max_dataset_rows: int = Field(
        default=1_000_000, ge=1, description="requests of one batch over a dataset"
    )
    max_dataset_bytes: int = Field(
        default=53_687_091_200,
        ge=1,
        description="size of all requests together that a dataset is rendered into",
    )
    #: A slice has at most this many rows; of an engine with few seats, twice those or 128.
    rows_per_slice: int = 512
    #: A slice has at most this many predicted tokens, unless one row alone has more.
    tokens_per_slice: int = 32_768
    cache_seconds: int = Field(
        default=THIRTY_DAYS,
        ge=0,
        description="how long answers may be given again to rows of batches with `cache`, at most; "
        "with 0 there is no cache",
    )
    max_cached_rows: int = Field(
        default=200_000,
        ge=0,
        description="rows of a tenant whose answers are known to the cache; each takes about 150 "
        "bytes of Redis",
    )
    mixed_batches: bool = Field(
        default=False,
        description="let each line of an input name its own model and endpoint; set the same for "
        "gateway and dispatcher",
    )
    strict_input: bool = Field(
        default=True,
        description="fail a batch for a line that is no request, as OpenAI does; with `false`, "
        "each such line gets an error and the others run. Set the same for gateway and dispatcher",
    )
    max_embedding_inputs: int = Field(
        default=50_000, ge=1, description="inputs of all requests of an embeddings batch together"
    )
    output_places: dict[str, tuple[InputPlace, ...]] = Field(
        default={},
        description="places where tenants may have the tables of their batches, besides their "
        "own prefix, written as BATCHYARD_INPUT_PLACES; Batchyard's login must be allowed to write "
        "there",
    )
    webhook_networks: tuple[IPv4Network | IPv6Network, ...] = Field(
        default=(),
        description="private networks where webhook endpoints may be, as a JSON list such as "
        '["10.1.0.0/16"]; set the same for gateway and dispatcher',
    )

    @property
    def table_places(self) -> InputPlaces:
        """The places in S3 where each tenant may have tables."""
        return InputPlaces(self.s3_bucket, self.tenant_prefix, self.output_places)


def open_storage(
    settings: StoreSettings,
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
