"""`batchyard credentials`: every secret of a fleet in containers, made once, without defaults.

Also `python3 -m cli.credentials`: it runs before anything is installed, so it imports only the
standard library.
"""

import argparse
import base64
import json
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cli.shell import assignments
from shared.bus.topology import DEMO_QUEUES, Bounds, User, definitions
from shared.errors import SetupError

SERVICE_USER = "batchyard"
#: The user of lane jobs at Redis, as shared/state/access.py and the starts of Redis name it.
LANE_USER = "lane"
#: The first tenant that may publish to RabbitMQ; `docs/operations.md` says how to add others.
TENANT = "demo"
NAMESPACE = "batchyard"


class S3(NamedTuple):
    """The S3 server of a fleet on Kubernetes."""

    endpoint: str
    access_key: str
    secret_key: str
    #: The login of lane jobs: `batchyard lane-logins s3` prints its rights.
    lane_access_key: str
    lane_secret_key: str


class _Made(NamedTuple):
    """New secrets; all are safe as they are in a URL, an `.env` and Redis's configuration."""

    service_password: str
    tenant_password: str
    redis_password: str
    ray_token: str
    metrics_token: str
    cache_secret: str
    lane_redis_password: str
    ray_redis_password: str

    def definitions(self) -> str:
        """What RabbitMQ loads: users, rights, exchanges and queues."""
        service = User(SERVICE_USER, self.service_password, tenant=False)
        bounds = Bounds(queues=DEMO_QUEUES)
        tenant = User(TENANT, self.tenant_password, tenant=True, bounds=bounds)
        return json.dumps(definitions([service, tenant]))


def compose_variables() -> dict[str, str]:
    """The variables that compose.yaml needs in its `.env`."""
    made = _make()
    s3_access_key, s3_secret_key = secrets.token_hex(10).upper(), secrets.token_urlsafe(30)
    return {
        "BATCHYARD_AMQP_URL": _amqp(SERVICE_USER, made.service_password, "rabbitmq"),
        "BATCHYARD_REDIS_URL": _redis(made.redis_password),
        "BATCHYARD_S3_ACCESS_KEY": s3_access_key,
        "BATCHYARD_S3_SECRET_KEY": s3_secret_key,
        "BATCHYARD_RAY_TOKEN": made.ray_token,
        "BATCHYARD_METRICS_TOKEN": made.metrics_token,
        "BATCHYARD_CACHE_SECRET": made.cache_secret,
        "REDIS_PASSWORD": made.redis_password,
        "LANE_REDIS_PASSWORD": made.lane_redis_password,
        "LANE_REDIS_URL": _redis(made.lane_redis_password, LANE_USER),
        # MinIO has only its first user until somebody makes another: docs/operations.md.
        "LANE_S3_ACCESS_KEY": s3_access_key,
        "LANE_S3_SECRET_KEY": s3_secret_key,
        "RABBITMQ_DEFINITIONS": base64.b64encode(made.definitions().encode()).decode(),
        # For the tenant's services on this machine; no container gets it.
        "DEMO_AMQP_URL": _amqp(TENANT, made.tenant_password, "127.0.0.1"),
    }


def kubernetes_secrets(s3: S3) -> list[dict[str, object]]:
    """The Secrets that the manifests of k8s/ refer to."""
    made = _make()
    data = {
        "batchyard-amqp": {
            "url": _amqp(SERVICE_USER, made.service_password, "rabbitmq"),
            "tenant-url": _amqp(TENANT, made.tenant_password, f"rabbitmq.{NAMESPACE}"),
            "definitions.json": made.definitions(),
        },
        "batchyard-redis": {
            "url": _redis(made.redis_password),
            "password": made.redis_password,
            "lane-password": made.lane_redis_password,
            "ray-password": made.ray_redis_password,
        },
        # Each key is the name of a file that lane jobs read.
        "batchyard-lane": {
            "BATCHYARD_REDIS_URL": _redis(made.lane_redis_password, LANE_USER),
            "BATCHYARD_S3_ACCESS_KEY": s3.lane_access_key,
            "BATCHYARD_S3_SECRET_KEY": s3.lane_secret_key,
            "BATCHYARD_CACHE_SECRET": made.cache_secret,
        },
        "batchyard-s3": {
            "endpoint": s3.endpoint,
            "access-key": s3.access_key,
            "secret-key": s3.secret_key,
        },
        # The name of the key is KubeRay's.
        "batchyard-ray": {"auth_token": made.ray_token},
        "batchyard-metrics": {"token": made.metrics_token},
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "labels": {"app.kubernetes.io/part-of": "batchyard"},
            },
            "stringData": texts,
        }
        for name, texts in data.items()
    ]


def write_env(path: Path) -> None:
    """Write a new `.env` that only its owner can read. Raises SetupError if there is one."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise SetupError(
            f"{path} exists, and the data of its fleet can only be opened with its secrets. Name "
            "another file by --output, or move it away together with the volumes."
        ) from error
    with os.fdopen(descriptor, "w") as file:
        file.write(assignments(compose_variables()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 2 for errors that the caller can fix."""
    parser = argparse.ArgumentParser(prog="batchyard credentials", description=__doc__)
    commands = parser.add_subparsers(dest="target", required=True)
    compose = commands.add_parser("compose", help="write the .env of compose.yaml")
    compose.add_argument("--output", type=Path, default=Path(".env"))
    kubernetes = commands.add_parser(
        "kubernetes", help="print the Secrets of k8s/, for `kubectl apply -f -`"
    )
    kubernetes.add_argument("--s3-endpoint", required=True)
    kubernetes.add_argument("--s3-access-key", default=os.environ.get("BATCHYARD_S3_ACCESS_KEY"))
    kubernetes.add_argument("--s3-secret-key", default=os.environ.get("BATCHYARD_S3_SECRET_KEY"))
    for name in ("access", "secret"):
        kubernetes.add_argument(
            f"--lane-s3-{name}-key", default=os.environ.get(f"BATCHYARD_LANE_S3_{name.upper()}_KEY")
        )
    given = parser.parse_args(arguments)
    try:
        if given.target == "compose":
            write_env(given.output)
            print(f"written    {given.output}")
            # Not an error: the fleet works, and MinIO needs a running server to make a login.
            sys.stderr.write(
                "batchyard: warning: lane jobs share the S3 login of gateway and dispatcher until "
                "you make them one: docs/operations.md, 'Who holds which login'.\n"
            )
        else:
            print(json.dumps(_list(_s3(given)), indent=2))
    except SetupError as error:
        sys.stderr.write(f"batchyard: {error}\n")
        return 2
    return 0


def _s3(given: argparse.Namespace) -> S3:
    if not given.s3_access_key or not given.s3_secret_key:
        raise SetupError(
            "The S3 server's keys are missing: set BATCHYARD_S3_ACCESS_KEY and "
            "BATCHYARD_S3_SECRET_KEY, or give --s3-access-key and --s3-secret-key."
        )
    lane_keys = given.lane_s3_access_key, given.lane_s3_secret_key
    if not all(lane_keys):
        if any(lane_keys):
            raise SetupError(
                "Of the S3 login of lane jobs one key is missing: give both --lane-s3-access-key "
                "and --lane-s3-secret-key."
            )
        sys.stderr.write(
            "batchyard: warning: lane jobs get the S3 login of gateway and dispatcher. Make them "
            "one with the rights that `batchyard lane-logins s3` prints, and give its keys by "
            "--lane-s3-access-key and --lane-s3-secret-key.\n"
        )
        lane_keys = given.s3_access_key, given.s3_secret_key
    return S3(given.s3_endpoint, given.s3_access_key, given.s3_secret_key, *lane_keys)


def _list(s3: S3) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "List", "items": kubernetes_secrets(s3)}


def _make() -> _Made:
    return _Made(
        service_password=secrets.token_urlsafe(24),
        tenant_password=secrets.token_urlsafe(24),
        redis_password=secrets.token_urlsafe(24),
        ray_token=secrets.token_hex(32),
        metrics_token=secrets.token_urlsafe(24),
        cache_secret=secrets.token_urlsafe(24),
        lane_redis_password=secrets.token_urlsafe(24),
        ray_redis_password=secrets.token_urlsafe(24),
    )


def _amqp(user: str, password: str, host: str) -> str:
    return f"amqp://{user}:{password}@{host}:5672/%2F"


def _redis(password: str, user: str = "") -> str:
    return f"redis://{user}:{password}@redis:6379/0"


if __name__ == "__main__":
    sys.exit(main())
