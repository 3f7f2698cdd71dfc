"""Base images of Debian packages, under the names that our files use, where none can be pulled.

They are older than what users get, so they prove nothing of RabbitMQ 4 or Redis 8.
"""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.stack.engine import Engine

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


def make_python(engine: Engine) -> None:
    """The base of all our images; a download of about 80 MB."""
    if engine.has_image(PYTHON):
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        root = folder / "root.tar"
        _bootstrap(_PYTHON_PACKAGES, root)
        engine.import_image(root, "standin/python")
        root.unlink()
        shutil.copy(_AUTHORITIES, folder / "ca-certificates.crt")
        (folder / "Dockerfile").write_text(_PYTHON_FILE)
        engine.run("build", "--network=host", "-t", PYTHON, str(folder))


def _bootstrap(packages: str, archive: Path) -> None:
    """A Debian 12 with these packages, as a tar."""
    command = ["mmdebstrap", "-q", "--variant=minbase", f"--include={packages}", "bookworm"]
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
