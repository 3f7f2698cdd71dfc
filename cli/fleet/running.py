"""Where the Redis of a fleet is that runs already, for commands that look into it."""

from pathlib import Path

from cli.fleet.credentials import read_credentials
from cli.servers import Redis
from shared.errors import SetupError


def redis_url(run_dir: Path, given: str | None) -> str:
    """The URL that was given, or that of the run directory's own Redis. Raises SetupError."""
    if given and not given.startswith(("redis://", "rediss://", "unix://")):
        raise SetupError(
            "BATCHYARD_REDIS_URL is no URL of a Redis, such as redis://:secret@host:6379/0."
        )
    if given:
        return given
    folder = run_dir / "redis"
    if (run_dir / "credentials.json").exists() and (folder / "ports.json").exists():
        return Redis(folder, read_credentials(run_dir).redis_password).url
    raise SetupError(
        f"{run_dir} holds no fleet with a Redis of its own. Name the folder of one by --run-dir, "
        "or set BATCHYARD_REDIS_URL to the URL that its gateway has under the same name."
    )
