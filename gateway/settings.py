"""The settings of the gateway, besides those of all processes."""

from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator

from gateway.fields import MetadataLimits
from shared.cache_salt import derived_secret
from shared.settings import SharedSettings

CompletionWindow = Annotated[str, Field(pattern="^[1-9][0-9]{0,2}[hd]$")]


class GatewaySettings(SharedSettings):
    """Read once, in `__main__`."""

    host: str = Field(default="127.0.0.1", description="the address that the gateway listens on")
    port: int = Field(default=8000, ge=1, le=65_535, description="the port that it listens on")
    share_port: bool = Field(
        default=False,
        description="listen on the port beside other gateways of the same user and machine; the "
        "kernel gives each connection to one of them",
    )
    max_upload_bytes: int = Field(
        default=209_715_200, ge=1, description="size of a file that is uploaded in one call"
    )
    upload_memory_bytes: int = Field(
        default=536_870_912,
        ge=1,
        description="memory for all running uploads of one gateway; each takes its size, at most "
        "24 MiB, and a tenant no more than it leaves free. Further uploads are refused with 429",
    )
    media_memory_bytes: int = Field(
        default=536_870_912,
        ge=1,
        description="memory for the media that the running live calls of one gateway name by URLs, "
        "shared as that of uploads",
    )
    media_networks: tuple[IPv4Network | IPv6Network, ...] = Field(
        default=(),
        description="private networks where the hosts of a model's `media_domains` may be, as a "
        'JSON list such as `["10.1.0.0/16"]`; without it, only public addresses are called. Set '
        "the same for gateway and lane jobs",
    )
    media_seconds: float = Field(
        default=30.0,
        gt=0,
        description="how long the download of one image, sound or video may take",
    )
    max_assembled_bytes: int = Field(
        default=8_589_934_592,
        ge=1,
        le=5 * 2**40,
        description="size of a file that is uploaded in parts",
    )
    upload_seconds: int = Field(
        default=3600, ge=1, le=43_200, description="how long an upload waits for its completion"
    )
    completion_windows: tuple[CompletionWindow, ...] = Field(
        default=("24h",),
        description="windows that a batch may ask for, as a JSON list; 24h is always among them",
    )
    missing_file: Literal["sync", "async"] = Field(
        default="sync",
        description="a batch over an unknown file is refused with 400 (sync), or created and then "
        "fails (async)",
    )
    max_metadata_pairs: int = Field(
        default=16, ge=0, description="entries in the metadata of a batch that is created by HTTP"
    )
    max_metadata_key_characters: int = Field(
        default=64, ge=1, description="length of a name in that metadata"
    )
    max_metadata_value_characters: int = Field(
        default=512, ge=0, description="length of a value in that metadata"
    )
    webhook_http: bool = Field(
        default=False,
        description="allow http URLs for webhook endpoints, in private networks and tests",
    )
    min_bytes_per_second: int = Field(
        default=16_384,
        ge=1,
        description="how fast a client has to read an answer; the connection of a slower one is "
        "closed, after 30 seconds at the earliest",
    )
    max_live_bytes: int = Field(
        default=33_554_432, ge=1, description="size of the body of a live call"
    )
    live_messages_in_hand: int = Field(
        default=256,
        ge=2,
        description="live calls by message that a gateway answers at once, half of them at most "
        "for one tenant; more wait in the broker",
    )
    cache_secret: SecretStr | None = Field(
        default=None,
        description="what keeps tenants apart in the engines' prefix caches; without it, a secret "
        "that follows from the S3 login's. Live calls and batches share cached beginnings only "
        "where gateway and lane jobs have the same one",
    )
    heartbeat_seconds: float = Field(
        default=15.0, gt=0, description="time between two comments that keep an event stream open"
    )
    access_log_sample: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="the part of reads and refusals that are logged as well, such as 0.01; changes "
        "and failures are always logged",
    )
    patience_seconds: float = Field(
        default=15.0,
        ge=3,
        description="how long a call waits for Redis or S3 before it is answered with 503",
    )
    grace_seconds: int = Field(
        default=30, ge=0, description="how long running calls may take at shutdown"
    )
    session_seconds: int = Field(
        default=43_200,
        ge=60,
        le=2_592_000,
        description="how long somebody who signed in to the page at `/ui` stays signed in",
    )
    metrics_token: SecretStr | None = Field(
        default=None,
        min_length=16,
        description="the bearer token of `/metrics`; without it there are no metrics",
    )

    @field_validator("completion_windows")
    @classmethod
    def _always_a_day(cls, windows: tuple[str, ...]) -> tuple[str, ...]:
        return windows if "24h" in windows else ("24h", *windows)

    @property
    def cache_key(self) -> bytes:
        """The secret for the salts of tenants; an empty one counts as none."""
        given = self.cache_secret.get_secret_value() if self.cache_secret else ""
        return given.encode() or derived_secret(self.s3_secret_key.get_secret_value().encode())

    @property
    def metadata_limits(self) -> MetadataLimits:
        """How much a batch's metadata may hold."""
        return MetadataLimits(
            self.max_metadata_pairs,
            self.max_metadata_key_characters,
            self.max_metadata_value_characters,
        )
