"""What every process must be told. Addresses have no defaults: a missing one stops the start."""

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


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
    catalog: Path = Field(description="the YAML file that names models and pools")
    log_level: str = "INFO"
