"""Our images, built from our unchanged Dockerfiles under the names of compose.yaml."""

import functools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.containers.test_images import IMAGES
from tests.k8s.rendering import ROOT
from tests.stack.engine import ContainerEngine

VERSION = "0.1.0"
#: Always the same: a build argument with another value would build all layers anew.
_WHEELS_PORT = 18_499


def build(
    engine: ContainerEngine, name: str, *, version: str = VERSION, context: Path = ROOT
) -> str:
    """The name of the image, once it is built; a second time costs seconds."""
    image = f"batchyard/{name}:{version}"
    with _index_arguments() as arguments:
        options = [f"--build-arg={key}={value}" for key, value in arguments.items()]
        engine.build(image, context, f"--file={context / IMAGES[name].file}", *options)
    return image


@contextmanager
def _index_arguments() -> Iterator[dict[str, str]]:
    """Where this machine's pip looks besides its index, as a build can reach it."""
    arguments = {}
    if url := os.environ.get("PIP_EXTRA_INDEX_URL"):
        arguments["PIP_EXTRA_INDEX_URL"] = url
    links = os.environ.get("PIP_FIND_LINKS", "")
    if not Path(links).is_dir() or not links:
        yield {**arguments, **({"PIP_FIND_LINKS": links} if links else {})}
        return
    handler = functools.partial(_Quiet, directory=links)
    with ThreadingHTTPServer(("127.0.0.1", _WHEELS_PORT), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield {**arguments, "PIP_FIND_LINKS": f"http://127.0.0.1:{_WHEELS_PORT}/"}
        finally:
            server.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *_: object) -> None:  # noqa: A002  # the library's name
        del format
