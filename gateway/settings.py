"""What the gateway must be told besides where the shared services are."""

from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator

from shared.settings import SharedSettings

CompletionWindow = Annotated[str, Field(pattern="^[1-9][0-9]{0,2}[hd]$")]


class GatewaySettings(SharedSettings):
    """Read once, in `__main__`."""

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=1, le=65_535)
    max_upload_bytes: int = Field(default=209_715_200, ge=1, description="of a file in one call")
    upload_memory_bytes: int = Field(
        default=536_870_912,
        ge=1,
        description="of all uploads under way in one gateway, which take 24 MiB each, or their "
        "size; more at once are refused with 429",
    )
    max_assembled_bytes: int = Field(
        default=8_589_934_592,
        ge=1,
        le=5 * 2**40,
        description="the largest file that an upload may put together from parts",
    )
    upload_seconds: int = Field(
        default=3600, ge=1, le=43_200, description="how long an upload waits for its completion"
    )
    completion_windows: tuple[CompletionWindow, ...] = Field(
        default=("24h",), description="a JSON list; 24h is always among them"
    )
    missing_file: Literal["sync", "async"] = Field(
        default="sync",
        description="a batch over an unknown file is refused with 400 (sync), or made and then "
        "failed (async)",
    )
    requests_per_minute: int = Field(default=100_000, ge=1, description="calls of a tenant")
    file_requests_per_minute: int = Field(
        default=1_000, ge=1, description="those among them to `/v1/files` and `/v1/uploads`"
    )
    max_metadata_pairs: int = Field(default=16, ge=0, description="of a batch by HTTP")
    max_metadata_key_characters: int = Field(default=64, ge=1)
    max_metadata_value_characters: int = Field(default=512, ge=0)
    max_webhook_endpoints: int = Field(default=10, ge=1, le=50, description="of one tenant")
    webhook_http: bool = Field(
        default=False,
        description="let webhook endpoints have http URLs: for private networks and tests",
    )
    heartbeat_seconds: float = Field(
        default=15.0, gt=0, description="between signs of life on a stream of events"
    )
    patience_seconds: float = Field(
        default=15.0,
        ge=3,
        description="how long a call waits for Redis, or for S3, before it is answered with 503",
    )
    grace_seconds: int = Field(default=30, ge=0, description="for running calls at the end")
    metrics_token: SecretStr | None = Field(
        default=None,
        min_length=16,
        description="with it, `/metrics` answers the bearer of this token; without, nobody",
    )

    @field_validator("completion_windows")
    @classmethod
    def _always_a_day(cls, windows: tuple[str, ...]) -> tuple[str, ...]:
        return windows if "24h" in windows else ("24h", *windows)
