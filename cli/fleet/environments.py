"""Which process of the fleet gets which settings.

Whatever Ray starts inherits the environment of Ray's node, engines too, which read the bodies of
strangers and may run their code. So no login stands there: lane jobs and waves read theirs from
files.
"""

from collections.abc import Mapping
from pathlib import Path

from cli.fleet.credentials import Credentials
from cli.fleet.servers import Addresses
from cli.servers.process import make_private_directory, write_private_file

#: Settings that are logins or other secrets. A test compares them with the settings' classes.
SECRET_SETTINGS = frozenset(
    f"BATCHYARD_{name}"
    for name in (
        "AMQP_URL",
        "CACHE_SECRET",
        "LANE_REDIS_URL",
        "LANE_S3_ACCESS_KEY",
        "LANE_S3_SECRET_KEY",
        "METRICS_TOKEN",
        "RAY_TOKEN",
        "REDIS_URL",
        "S3_ACCESS_KEY",
        "S3_SECRET_KEY",
    )
)
#: OpenTelemetry's variables that often hold the login of a collector.
_COLLECTOR_LOGINS = frozenset({"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"})
#: The folder in the run directory with the secrets of lane jobs.
_LANE_SECRETS = "lane-secrets"


def service_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """What gateway and dispatcher take from the environment in which the fleet is started."""
    foreign = SECRET_SETTINGS - {"BATCHYARD_METRICS_TOKEN"}
    return {name: text for name, text in inherited.items() if name not in foreign}


def node_environment(environment: Mapping[str, str], run_dir: Path) -> dict[str, str]:
    """The environment of Ray's node: that of gateway and dispatcher without secrets."""
    secret = SECRET_SETTINGS | _COLLECTOR_LOGINS
    plain = {name: text for name, text in environment.items() if name not in secret}
    return {**plain, "BATCHYARD_LOGINS": str((run_dir / _LANE_SECRETS).resolve())}


def write_lane_secrets(run_dir: Path, addresses: Addresses, credentials: Credentials) -> None:
    """Write the files that lane jobs and waves read, each named as its variable."""
    folder = run_dir / _LANE_SECRETS
    make_private_directory(folder)
    for name, text in {
        "BATCHYARD_REDIS_URL": addresses.lane_redis_url,
        "BATCHYARD_S3_ACCESS_KEY": addresses.lane_s3_access_key,
        "BATCHYARD_S3_SECRET_KEY": addresses.lane_s3_secret_key,
        "BATCHYARD_CACHE_SECRET": credentials.cache_secret,
    }.items():
        write_private_file(folder / name, text)
