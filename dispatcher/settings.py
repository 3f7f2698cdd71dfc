"""The settings of the dispatcher, besides those of all processes."""

from typing import Literal

from pydantic import Field, SecretStr

from shared.settings import NINETY_DAYS, TEN_MINUTES, SharedSettings


class DispatcherSettings(SharedSettings):
    """Quantities carry their unit in their name."""

    #: The address of Ray's dashboard, which has the job API.
    ray_address: str
    #: The token of the Ray cluster.
    ray_token: SecretStr
    group_by_prefix: bool = Field(
        default=True,
        description="let rows of a batch that begin alike run after each other, wherever they "
        "stand in its input, if the engine's prefix cache gains from it",
    )
    #: How many rows a lane keeps ready until its job has said how many it can take.
    ready_rows: int = 512
    #: A lane job without a sign of life for this long is stopped and replaced.
    lane_job_silence_seconds: float = 60.0
    #: A lane whose jobs end this often without a committed row fails its batches.
    lane_job_attempts: int = 5
    tag_results: bool = Field(
        default=False,
        description="give each output and error file in S3 the object tag `tenant`, so that a "
        "tenant's S3 login can be allowed to read its own; the server must support tags",
    )
    keep_parts: bool = Field(
        default=True,
        description="keep the parts of results in S3 for a day after their batch's end, so that "
        "`batchyard remake` can make damaged result files again",
    )
    bills: Literal["csv", "parquet", "none"] = Field(
        default="csv",
        description="the form of each month's bill, which the dispatcher writes to S3 at the "
        "month's end; `none` for no bills",
    )
    batch_seconds: int = Field(
        default=NINETY_DAYS,
        ge=3600,
        description="how long a batch is known after its end; longer while its files are kept",
    )
    ended_seconds: int = Field(
        default=TEN_MINUTES,
        ge=60,
        description="how long after its end a batch stays in Redis; from then on its record is "
        "read from S3 when it is asked for",
    )
    messages_in_hand: int = Field(
        default=128,
        ge=1,
        le=1000,
        description="how many batch messages the dispatcher holds unacknowledged; fewer if so many "
        "of 4 MiB would not fit into half of its container's memory",
    )
    #: How long one attempt of a webhook may take, from start to end.
    webhook_timeout_seconds: float = Field(default=20.0, gt=0, le=30)
    #: How many webhooks are sent at the same time; a tenant has no more than it leaves free.
    webhook_attempts: int = Field(default=64, ge=1, le=1000)
    #: How many of them to one endpoint, so that a slow receiver does not hold up others.
    webhook_attempts_per_endpoint: int = Field(default=4, ge=1)
    #: Time between two progress events of a batch; at least one second.
    progress_seconds: float = Field(default=1.0, ge=1)
    #: A JSON list of tenants that get events in CloudEvents' binary mode; ["*"] for all.
    binary_event_tenants: frozenset[str] = frozenset()
    #: How long the URLs of result files in a batch's last event are valid; 0 for no URLs.
    event_url_seconds: int = Field(default=0, ge=0, le=604_800)
    #: The S3 server's address in these URLs, if subscribers need another one.
    event_url_endpoint: str | None = None
    event_results_bytes: int = Field(
        default=65_536,
        ge=0,
        le=262_144,
        description="up to this size together, both result files travel in a batch's last event, "
        "if the submission asks for it; 0 for never",
    )
    #: The address on which `/healthz`, `/readyz` and `/metrics` answer.
    health_host: str = "127.0.0.1"
    #: The port on which they answer; by default they do not.
    health_port: int | None = Field(default=None, ge=0, le=65_535)
    metrics_token: SecretStr | None = Field(default=None, min_length=16)
