"""compose.s3.yaml: a fleet whose S3 is somebody else's."""

from pathlib import Path

from cli.credentials import compose_variables
from tests.containers import compose
from tests.k8s.rendering import MANIFESTS, read
from tests.stack.engine import ContainerEngine
from tests.stack.stack import Stack


def test_the_fleet_waits_for_the_s3_elsewhere_and_starts_none(
    engine: ContainerEngine, images: dict[str, str], tmp_path: Path
) -> None:
    assert images
    [catalog] = read((MANIFESTS / "base/catalog.yaml").read_text())
    endpoint = "http://elsewhere:9000"
    stack = Stack(engine, tmp_path, catalog, [compose.S3_FILE], S3_ENDPOINT=endpoint)
    elsewhere = f"{stack.project}-elsewhere"
    try:
        stack.up("--no-build", "redis", "rabbitmq", "s3")
        stack.wait_well("redis", "rabbitmq")
        assert stack.health("s3") != "healthy"

        _start_server(stack, elsewhere)
        stack.wait_well("s3")
        stack.up("--no-build", "gateway")
        # It is ready when its bucket is there.
        stack.wait_well("gateway")

        assert stack.look(stack.container("s3"))["Config"]["Image"] == images["gateway"]
    finally:
        engine.run("rm", "--force", "--volumes", elsewhere, check=False)
        stack.down()


def _start_server(stack: Stack, name: str) -> None:
    """The server that compose.yaml would start, where the fleet can find it and does not own it."""
    fleet = compose.interpolated(compose.load(compose.FILE.read_text()), compose_variables())
    server = fleet["services"]["s3"]
    keys = {
        "MINIO_ROOT_USER": stack.variables["BATCHYARD_S3_ACCESS_KEY"],
        "MINIO_ROOT_PASSWORD": stack.variables["BATCHYARD_S3_SECRET_KEY"],
    }
    stack.engine.run(
        "run",
        "--detach",
        f"--name={name}",
        f"--network={stack.project}_default",
        "--network-alias=elsewhere",
        "--volume=/data",
        *(f"--env={variable}={value}" for variable, value in keys.items()),
        server["image"],
        *server["command"],
    )
