"""Where the servers of a running fleet are, for the commands that work on them."""

from pathlib import Path

from cli.fleet.credentials import SERVICE_USER, read_credentials
from cli.servers import CephS3, RabbitMQ, Redis, User
from shared.errors import SetupError


def redis_url(run_dir: Path, given: str | None) -> str:
    """The URL that was named, or that of the run directory's own Redis. Raises SetupError."""
    if given and not given.startswith(("redis://", "rediss://", "unix://")):
        raise SetupError(
            "BATCHYARD_REDIS_URL is not a Redis URL, such as redis://:secret@host:6379/0."
        )
    if given:
        return given
    folder = run_dir / "redis"
    if (run_dir / "credentials.json").exists() and (folder / "ports.json").exists():
        return Redis(folder, read_credentials(run_dir).redis_password).url
    raise SetupError(
        f"{run_dir} holds no fleet with its own Redis. Name the folder of one by --run-dir, "
        "or set BATCHYARD_REDIS_URL to the URL that its gateway has under the same name."
    )


def s3_place(
    run_dir: Path, endpoint: str | None, access_key: str | None, secret_key: str | None
) -> tuple[str, str, str]:
    """Endpoint, access key and secret key: those named, or the run directory's own.

    Raises SetupError.
    """
    if endpoint and access_key and secret_key:
        return endpoint, access_key, secret_key
    folder = run_dir / "s3"
    if (
        not endpoint
        and (run_dir / "credentials.json").exists()
        and (folder / "ports.json").exists()
    ):
        made = read_credentials(run_dir)
        server = CephS3(folder, made.s3_access_key, made.s3_secret_key)
        return server.endpoint, made.s3_access_key, made.s3_secret_key
    raise SetupError(
        f"{run_dir} holds no fleet with its own S3. Name the folder of one by --run-dir, or "
        "set BATCHYARD_S3_ENDPOINT, BATCHYARD_S3_ACCESS_KEY and BATCHYARD_S3_SECRET_KEY to what "
        "its gateway has under these names."
    )


def ceph(run_dir: Path) -> CephS3:
    """The run directory's own S3, which runs. Raises SetupError if there is none or it is down."""
    folder = run_dir / "s3"
    if not (run_dir / "credentials.json").exists() or not (folder / "ports.json").exists():
        raise SetupError(
            f"{run_dir} holds no fleet with its own S3. Name the folder of one by --run-dir; "
            "for an S3 server of your own, `--print policy` shows the rights to give a user there."
        )
    made = read_credentials(run_dir)
    server = CephS3(folder, made.s3_access_key, made.s3_secret_key)
    if not server.is_served():
        raise SetupError(
            f"The S3 of {run_dir} does not answer at {server.endpoint}. Start the fleet first: "
            f"batchyard up --run-dir {run_dir}"
        )
    return server


def rabbitmq(run_dir: Path) -> RabbitMQ:
    """The run directory's own broker, which is running. Raises SetupError if there is none."""
    folder = run_dir / "rabbitmq"
    if not (folder / "ports.json").exists():
        raise SetupError(
            f"{run_dir} holds no fleet with its own RabbitMQ. Name the folder of one by "
            "--run-dir; for a broker of your own, --print shows how to create the user there."
        )
    return RabbitMQ(folder, [])


def amqp_url(run_dir: Path, given: str | None) -> str:
    """The URL that was named, or that of our own user in the run directory's own broker.

    Raises SetupError.
    """
    if given and not given.startswith(("amqp://", "amqps://")):
        raise SetupError(
            "BATCHYARD_AMQP_URL is not an AMQP URL, such as amqp://batchyard:secret@host/."
        )
    if given:
        return given
    folder = run_dir / "rabbitmq"
    if (run_dir / "credentials.json").exists() and (folder / "ports.json").exists():
        password = read_credentials(run_dir).service_password
        return RabbitMQ(folder, []).url(User(SERVICE_USER, password, tenant=False))
    raise SetupError(
        f"{run_dir} holds no fleet with its own RabbitMQ. Name the folder of one by "
        "--run-dir, or set BATCHYARD_AMQP_URL to the URL that its dispatcher has under that name."
    )
