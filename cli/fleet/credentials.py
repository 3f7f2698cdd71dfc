"""The secrets of one run directory: generated at its first start and kept."""

import json
import secrets
from pathlib import Path
from typing import NamedTuple

from cli.servers.process import write_private_file
from shared import ids

#: The tenant of the fleet's first API key and broker login.
TENANT = "demo"
SERVICE_USER = "batchyard"


class Credentials(NamedTuple):
    """Every secret of the fleet; none of them has a default."""

    service_password: str
    tenant_password: str
    redis_password: str
    s3_access_key: str
    s3_secret_key: str
    ray_token: str
    api_key: str
    cache_secret: str
    lane_redis_password: str
    lane_s3_access_key: str
    lane_s3_secret_key: str


def read_credentials(run_dir: Path) -> Credentials:
    """The run directory's secrets; generated now if it has none."""
    path = run_dir / "credentials.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    if known.keys() >= set(Credentials._fields):
        return Credentials(**known)
    # A run directory of an older version keeps what it has.
    fresh = Credentials(
        service_password=secrets.token_urlsafe(24),
        tenant_password=secrets.token_urlsafe(24),
        redis_password=secrets.token_urlsafe(24),
        s3_access_key=secrets.token_hex(10).upper(),
        s3_secret_key=secrets.token_urlsafe(30),
        ray_token=secrets.token_hex(32),
        api_key=ids.new_api_key(),
        cache_secret=secrets.token_urlsafe(24),
        lane_redis_password=secrets.token_urlsafe(24),
        lane_s3_access_key=secrets.token_hex(10).upper(),
        lane_s3_secret_key=secrets.token_urlsafe(30),
    )
    made = fresh._replace(**known)
    write_private_file(path, json.dumps(made._asdict(), indent=2))
    return made
