"""What the dispatcher must be told besides the shared addresses."""

from ipaddress import IPv4Network, IPv6Network

from pydantic import Field, SecretStr

from shared.settings import SharedSettings


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
    webhook_networks: tuple[IPv4Network | IPv6Network, ...] = ()
    #: For one attempt, all in all.
    webhook_timeout_seconds: float = Field(default=20.0, gt=0, le=30)
    #: Webhooks under way at once.
    webhook_attempts: int = Field(default=64, ge=1, le=1000)
    #: Of these, how many for one endpoint: a slow receiver must not hold up the others.
    webhook_attempts_per_endpoint: int = Field(default=4, ge=1)
    health_host: str = "127.0.0.1"
    #: Where `/healthz`, `/readyz` and, with the token, `/metrics` answer; none by default.
    health_port: int | None = Field(default=None, ge=0, le=65_535)
    metrics_token: SecretStr | None = Field(default=None, min_length=16)
