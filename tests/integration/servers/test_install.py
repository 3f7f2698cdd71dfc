import os
import sys
from pathlib import Path

import pytest

from cli.servers import install, missing, missing_for_engine
from shared.errors import SetupError


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose apt-get only notes its arguments, and whether services may start."""
    programs = tmp_path / "bin"
    programs.mkdir()
    program(
        programs / "apt-get",
        f'echo "$@" >>{tmp_path}/asked\n[ ! -x {tmp_path}/policy ] || {tmp_path}/policy\n'
        f"echo $? >>{tmp_path}/policy-said\n",
    )
    program(programs / "apt-cache", "exit 0\n")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path


def program(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}")
    path.chmod(0o755)


def asked(machine: Path) -> list[str]:
    return (machine / "asked").read_text().splitlines()


def test_nothing_is_asked_for_when_nothing_is_missing(machine: Path) -> None:
    install([], policy=machine / "policy")

    assert not (machine / "asked").exists()


def test_missing_packages_are_installed_without_starting_a_service(machine: Path) -> None:
    lines: list[str] = []

    install(["ceph-mon", "radosgw"], report=lines.append, policy=machine / "policy")

    assert asked(machine) == ["-qq install -y --no-install-recommends ceph-mon radosgw"]
    assert (machine / "policy-said").read_text() == "101\n"
    assert not (machine / "policy").exists()
    assert lines == ["Installing ceph-mon, radosgw …"]


def test_a_policy_that_is_there_is_left_alone(machine: Path) -> None:
    program(machine / "policy", "exit 7\n")

    install(["radosgw"], report=lambda _: None, policy=machine / "policy")

    assert (machine / "policy-said").read_text() == "7\n"


def test_the_lists_are_fetched_when_they_do_not_name_a_package(machine: Path) -> None:
    program(machine / "bin" / "apt-cache", "exit 100\n")

    install(["radosgw"], report=lambda _: None, policy=machine / "policy")

    assert [line.split()[1] for line in asked(machine)] == ["update", "install"]


def test_a_failure_names_the_command_the_cause_and_the_ways_out(machine: Path) -> None:
    program(machine / "bin" / "apt-get", "echo Unable to locate package radosgw >&2; exit 100\n")

    with pytest.raises(SetupError) as failed:
        install(["radosgw"], report=lambda _: None, policy=machine / "policy")

    message = str(failed.value)
    assert "`apt-get install --no-install-recommends radosgw` failed" in message
    assert "Unable to locate package radosgw" in message
    assert "docker compose up" in message
    assert "--s3-endpoint" in message
    assert not (machine / "policy").exists()


def test_without_root_the_command_is_said(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    program(machine / "bin" / "sudo", "echo a password is required >&2; exit 1\n")

    with pytest.raises(SetupError, match=r"Run as root: apt-get install .* radosgw"):
        install(["radosgw"], policy=machine / "policy")


def test_sudo_that_asks_nothing_is_used(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    program(machine / "bin" / "sudo", 'shift; exec "$@"\n')

    install(["radosgw"], report=lambda _: None, policy=machine / "policy")

    assert asked(machine) == ["-qq install -y --no-install-recommends radosgw"]


def test_a_server_that_is_not_asked_for_is_not_missing() -> None:
    assert missing([]) == []


def test_what_the_engine_cannot_load_run_or_compile_with_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    there, nowhere = {"libc.so.6": "libc6"}, {"libnowhere.so.1": "libnowhere1"}
    # By its module: the package has a function of the same name.
    module = sys.modules[missing_for_engine.__module__]
    monkeypatch.setattr(module, "_ENGINE_LIBRARIES", there | nowhere)

    monkeypatch.setattr(module, "_ENGINE_PROGRAMS", {"sh": "dash", "no-such-program": "nowhere"})

    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))

    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert missing_for_engine() == ["libnowhere1", "nowhere", f"python{version}-dev"]


def test_missing_packages_are_found_by_their_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    program(tmp_path / "ceph-mon", "")

    assert missing(["ceph", "redis"]) == [
        "ceph-base",
        "ceph-common",
        "ceph-osd",
        "radosgw",
        "redis-server",
    ]
