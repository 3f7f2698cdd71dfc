"""A process that vLLM starts as its core is a fork of the server, and ends with it."""

import asyncio
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from cli.models.tiny import make_tiny_chat_model
from tests.eventually import eventually, wait_until

pytest.importorskip("vllm", reason="needs the worker's dependencies")

from worker.few_at_a_time import Few
from worker.fork_server import ForkServer, Kind
from worker.forked_core import ForkedCore, forking_cores, why_spawned

pytestmark = pytest.mark.timeout(300)

#: A machine on which no process can be made while there is a file of that name.
NO_FORKS = """
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
pid_t fork(void) {
    if (getenv("NO_FORKS") && access(getenv("NO_FORKS"), F_OK) == 0) {
        errno = EAGAIN;
        return -1;
    }
    return _Fork();
}
"""
#: CUDA's driver, which answers as one that somebody has initialised or that nobody has.
DRIVER = "int cuDeviceGetCount(int *count) {{ return {answer}; }}"


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    os.environ["RAY_AUTH_TOKEN"] = "secret"
    server = ForkServer()
    yield server
    server.close()
    del os.environ["RAY_AUTH_TOKEN"]


def vllms() -> Any:
    """The module in which vLLM starts its core."""
    from vllm.v1.engine import utils

    return utils


def tell(told: Path) -> None:
    """What a core finds, in its own process."""
    has_vllm = "vllm.v1.engine.core" in sys.modules
    # Of a processor. An import of vLLM takes longer on any machine.
    pace = "quick" if time.process_time() < 2 else "slow"
    found = [has_vllm, os.environ.get("LATER"), os.environ.get("RAY_AUTH_TOKEN"), pace]
    told.write_text(" ".join(map(str, found)))


def wait_for_ever(_: Path) -> None:
    time.sleep(3600)


def started(server: ForkServer, target: object, told: Path) -> ForkedCore:
    with forking_cores(server):
        core = vllms().get_mp_context().Process(target=target, name="EngineCore", args=(told,))
        core.start()
    assert isinstance(core, ForkedCore)
    return core


def test_a_core_has_all_imports_and_the_environment_of_now_but_nothing_of_rays(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server.can_fork_cores
    monkeypatch.setenv("LATER", "as now")

    core = started(server, tell, tmp_path / "told")
    core.join(60)

    assert core.exitcode is not None
    assert (tmp_path / "told").read_text() == "True as now None quick"
    assert psutil.Process(server.pid).is_running()


def tell_of_tokenizers(told: Path) -> None:
    """How many a core has loaded before it asks, and of how many a front knows the template."""
    from vllm.renderers.hf import _PROCESSOR_CHAT_TEMPLATES
    from vllm.tokenizers import cached_get_tokenizer

    loaded = cached_get_tokenizer.cache_info().currsize
    told.write_text(f"{loaded} {len(_PROCESSOR_CHAT_TEMPLATES)}")


@pytest.mark.parametrize(("for_fronts", "found"), [(False, "1 0"), (True, "1 1")])
def test_what_is_forked_has_the_tokenizer_of_the_model(
    tmp_path: Path, found: str, *, for_fronts: bool
) -> None:
    make_tiny_chat_model(tmp_path / "model")
    server = ForkServer()
    try:
        server.load_tokenizer(model_config(tmp_path / "model"), for_fronts=for_fronts)

        core = started(server, tell_of_tokenizers, tmp_path / "told")
        core.join(120)

        assert (tmp_path / "told").read_text() == found
    finally:
        server.close()


@pytest.mark.parametrize("reason", ["broken", "code of its own"])
def test_a_tokenizer_that_the_server_does_not_load_is_left_to_whoever_needs_it(
    tmp_path: Path, reason: str
) -> None:
    make_tiny_chat_model(tmp_path / "model")
    brings_code = reason == "code of its own"
    config = model_config(tmp_path / "model", trust_remote_code=brings_code)
    if not brings_code:
        (tmp_path / "model" / "tokenizer.json").write_text("{")
    server = ForkServer()
    try:
        before = server.pid
        server.load_tokenizer(config, for_fronts=True)

        core = started(server, tell_of_tokenizers, tmp_path / "told")
        core.join(120)

        assert (tmp_path / "told").read_text() == "0 0"
        assert server.pid == before
    finally:
        server.close()


def model_config(folder: Path, **fields: Any) -> Any:
    from vllm.config import ModelConfig

    return ModelConfig(model=str(folder), max_model_len=128, dtype="float32", **fields)


def test_whoever_waits_for_a_core_learns_that_it_was_killed(
    server: ForkServer, tmp_path: Path
) -> None:
    core = started(server, wait_for_ever, tmp_path)
    assert core.is_alive()
    assert core.exitcode is None
    assert core.pid is not None

    os.kill(core.pid, signal.SIGKILL)
    core.join(60)

    assert not core.is_alive()
    assert core.exitcode == 1


async def test_a_core_ends_with_the_server_and_another_server_forks_the_next(
    server: ForkServer, tmp_path: Path
) -> None:
    core = started(server, wait_for_ever, tmp_path)
    assert core.pid is not None
    process, before = psutil.Process(core.pid), server.pid

    psutil.Process(before).kill()

    await eventually(lambda: not process.is_running(), timeout=30)
    assert not core.is_alive()
    after = started(server, tell, tmp_path / "told")
    after.join(120)
    assert (tmp_path / "told").read_text().startswith("True")
    assert server.pid != before


def test_without_a_server_vllm_spawns_its_core() -> None:
    before = vllms().get_mp_context
    with forking_cores(None):
        assert vllms().get_mp_context is before
    assert vllms().get_mp_context is before


@pytest.mark.parametrize(("answer", "can_fork"), [(3, True), (0, False)])
def test_no_core_is_forked_where_anybody_has_begun_with_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: int, *, can_fork: bool
) -> None:
    driver = built(tmp_path, "libcuda.so.1", DRIVER.format(answer=answer))
    monkeypatch.setenv("LD_PRELOAD", str(driver))
    server = ForkServer()
    try:
        assert server.can_fork_cores is can_fork
        before = vllms().get_mp_context
        with forking_cores(server):
            assert (vllms().get_mp_context is before) is not can_fork
    finally:
        server.close()


def test_a_process_that_cannot_be_made_leaves_the_server_and_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", str(built(tmp_path, "libnoforks.so", NO_FORKS)))
    monkeypatch.setenv("NO_FORKS", str(tmp_path / "no-forks"))
    server = ForkServer()
    try:
        before = server.pid
        core = started(server, wait_for_ever, tmp_path)

        (tmp_path / "no-forks").touch()
        with pytest.raises(OSError, match="has made no process"):
            started(server, tell, tmp_path / "told")
        (tmp_path / "no-forks").unlink()

        after = started(server, tell, tmp_path / "told")
        after.join(60)
        assert (tmp_path / "told").exists()
        assert server.pid == before
        assert core.is_alive()
    finally:
        server.close()


class Endless:
    """Whoever reads it has enough to do."""

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return time.sleep, (3600,)


async def test_fronts_wait_until_processes_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from worker.fronts import Fronts

    monkeypatch.setenv("LD_PRELOAD", str(built(tmp_path, "libnoforks.so", NO_FORKS)))
    monkeypatch.setenv("NO_FORKS", str(tmp_path / "no-forks"))
    server = ForkServer()
    try:
        assert server.can_fork_cores
        (tmp_path / "no-forks").touch()
        fronts = Fronts(1, server, Few())
        config = SimpleNamespace(parallel_config=SimpleNamespace())
        setup = SimpleNamespace(vllm_config=config, args=Endless(), supported_tasks=())
        fronts._setup.set_result(setup)  # noqa: SLF001  # as `connect` does, which needs an engine
        [keeping] = fronts._keeping  # noqa: SLF001  # as above
        await asyncio.sleep(2)
        assert not keeping.done()

        (tmp_path / "no-forks").unlink()

        await eventually(lambda: len(psutil.Process(server.pid).children()) == 1)
        # It is waited for: its socket is the loop's by then, and not lost with the task.
        await eventually(lambda: "Event.wait" in repr(asyncio.all_tasks()))
    finally:
        server.close()
    # The front ends after its server. Only then is its socket closed.
    await eventually(lambda: "Event.wait" not in repr(asyncio.all_tasks()))
    keeping.cancel()


def test_a_server_that_has_no_descriptors_left_lives_on(server: ForkServer, tmp_path: Path) -> None:
    assert server.can_fork_cores
    before = server.pid
    used = psutil.Process(before).num_fds()
    core = started(server, wait_for_ever, tmp_path)
    # The core has begun before the server has closed what the core inherits.
    wait_until(lambda: psutil.Process(before).num_fds() == used)
    limits = resource.prlimit(before, resource.RLIMIT_NOFILE)

    resource.prlimit(before, resource.RLIMIT_NOFILE, (used, limits[1]))
    with pytest.raises(OSError, match="has made no process"):
        started(server, tell, tmp_path / "told")
    resource.prlimit(before, resource.RLIMIT_NOFILE, limits)

    after = started(server, tell, tmp_path / "told")
    after.join(60)
    assert (tmp_path / "told").exists()
    assert server.pid == before
    assert core.is_alive()
    wait_until(lambda: psutil.Process(before).num_fds() == used)
    core.kill()


def test_the_end_of_a_server_that_nobody_has_asked_is_noticed() -> None:
    server = ForkServer()
    try:
        before = server.pid
        control = server._control  # noqa: SLF001  # nothing else shows what it has said
        wait_until(lambda: bool(select.select([control], [], [], 0)[0]))
        # As the kernel does before the process is gone.
        control.shutdown(socket.SHUT_RD)

        server.open(Kind.FRONT).close()

        assert server.pid != before
        assert server.can_fork_cores
    finally:
        server.close()


def test_what_a_fork_cannot_inherit_has_a_spawned_core(server: ForkServer) -> None:
    assert why_spawned(config()) is None
    assert why_spawned(config(mm_tensor_ipc="direct_rpc")) is None
    assert why_spawned(config(numa_bind=True)) == "numa_bind"
    reason = why_spawned(config(mm_tensor_ipc="torch_shm"))
    assert reason == "mm_tensor_ipc: torch_shm"

    before = vllms().get_mp_context
    with forking_cores(server, spawned_for=reason):
        assert vllms().get_mp_context is before


def config(*, numa_bind: bool = False, mm_tensor_ipc: Any = None) -> Any:
    """As far as it is looked at, with vLLM's own parts."""
    from vllm.config import MultiModalConfig, ParallelConfig

    media = mm_tensor_ipc and MultiModalConfig(mm_tensor_ipc=mm_tensor_ipc)
    return SimpleNamespace(
        parallel_config=ParallelConfig(numa_bind=numa_bind),
        model_config=SimpleNamespace(multimodal_config=media or None),
    )


def built(folder: Path, name: str, text: str) -> Path:
    """A library of that name, which LD_PRELOAD takes."""
    source, library = folder / "library.c", folder / name
    source.write_text(text)
    command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return library
