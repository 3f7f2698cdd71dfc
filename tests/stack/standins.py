"""Images of Debian packages, under the names that our files use, where none can be pulled.

They are older than what users get, so they prove nothing of RabbitMQ 4, Redis 8 or MinIO; the S3
server is Ceph's.
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from cli.credentials import compose_variables
from tests.containers import compose
from tests.k8s.rendering import ROOT
from tests.stack.engine import ContainerEngine, NoEngineError

PYTHON = "python:3.11-slim-bookworm"
_AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
_PYTHON_PACKAGES = "python3.11,python3.11-dev,python3-pip,python3-venv,ca-certificates"
# As the official image has it: `python` is there, and packages come from the same index as here.
_PYTHON_FILE = f"""\
FROM standin/python
COPY ca-certificates.crt {_AUTHORITIES}
ENV PIP_CERT={_AUTHORITIES}
RUN ln -s /usr/bin/python3.11 /usr/local/bin/python
"""
#: Services of compose.yaml whose images are somebody else's: the files of their stand-ins.
_FILES: Mapping[str, Sequence[Path]] = {
    "redis": (),
    "rabbitmq": (),
    "s3": (ROOT / "cli/__init__.py", ROOT / "cli/servers", ROOT / "shared"),
}
_HERE = Path(__file__).parent / "standin"


def make_images(engine: ContainerEngine) -> None:
    """The base of our images, and the servers' images. Raises NoEngineError."""
    if not _can_be_had(engine, PYTHON):
        _make_python(engine)
    fleet = compose.interpolated(compose.load(compose.FILE.read_text()), compose_variables())
    for service, needs in _FILES.items():
        image = fleet["services"][service]["image"]
        # Ours anew each time, since what they are made of may have changed; that costs seconds.
        if engine.is_ours or not _can_be_had(engine, image):
            _make_server(engine, service, image, needs)


def _can_be_had(engine: ContainerEngine, image: str) -> bool:
    """Raises NoEngineError where it cannot, and a stand-in would be in somebody's way."""
    if engine.has_image(image) or (not engine.is_ours and engine.pull(image)):
        return True
    if not engine.is_ours:
        raise NoEngineError(f"the engine that runs cannot pull {image}")
    return False


def _make_python(engine: ContainerEngine) -> None:
    """A download of about 80 MB."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        root = folder / "root.tar"
        _bootstrap(_PYTHON_PACKAGES, root)
        engine.import_image(root, "standin/python")
        root.unlink()
        shutil.copy(_AUTHORITIES, folder / "ca-certificates.crt")
        (folder / "Dockerfile").write_text(_PYTHON_FILE)
        engine.build(PYTHON, folder)


def _make_server(engine: ContainerEngine, service: str, image: str, needs: Sequence[Path]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        shutil.copytree(_HERE / service, folder, dirs_exist_ok=True)
        for path in needs:
            target = folder / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if path.is_dir() else shutil.copy)(path, target)
        engine.build(image, folder)


def _bootstrap(packages: str, archive: Path) -> None:
    """A Debian 12 with these packages, as a tar."""
    # A bootstrap that is interrupted is begun anew: nothing needs to be on disk on the way.
    options = ["--variant=minbase", "--dpkgopt=force-unsafe-io", f"--include={packages}"]
    command = ["mmdebstrap", "-q", *options, "bookworm"]
    done = subprocess.run(
        [*command, str(archive), _mirror()], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise AssertionError(f"mmdebstrap: {done.stderr[-2000:]}")


def _mirror() -> str:
    """Where this machine's own packages come from."""
    sources = [*Path("/etc/apt/sources.list.d").glob("*.sources"), Path("/etc/apt/sources.list")]
    for file in sources:
        found = re.search(r"^(?:URIs:|deb) +(\w+://\S+)", file.read_text(), flags=re.MULTILINE)
        if found:
            return found[1]
    raise AssertionError("apt has no sources")
