import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cli.servers import Child, sole_user_of
from cli.servers.process import RUN_DIR_VARIABLE, stop_together
from shared.errors import SetupError
from tests.eventually import wait_until

SLEEP = ["sleep", "1000"]


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(SLEEP, start_new_session=True) as process:
        yield process
        process.kill()


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    child = Child("sleeper", SLEEP, tmp_path)
    yield child
    child.kill()


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def parent_of(
    run_dir: Path, command: list[str], first: str = ""
) -> tuple[subprocess.Popen[str], int]:
    """Another interpreter that starts a child of ours and waits; and the child's number.

    `first` is a line of Python that it runs before.
    """
    script = (
        "import os, pathlib, sys, time\n"
        f"{first}\n"
        "from cli.servers import Child\n"
        "child = Child('sleeper', sys.argv[2:], pathlib.Path(sys.argv[1]))\n"
        "child.start()\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(1000)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(run_dir), *command], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


def kill_parent(parent: subprocess.Popen[str]) -> None:
    parent.kill()
    parent.communicate()


def test_a_child_dies_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent, pid = parent_of(tmp_path, SLEEP)
    assert is_running(pid)

    kill_parent(parent)

    wait_until(lambda: not is_running(pid))


def test_a_handler_that_never_returns_in_a_fork_of_the_parent_stops_no_child(
    tmp_path: Path,
) -> None:
    # Those of gRPC, which Ray loads into its clients, sometimes do not.
    hangs = "os.register_at_fork(after_in_child=lambda: time.sleep(1000))"
    parent, pid = parent_of(tmp_path, SLEEP, hangs)
    try:
        wait_until(lambda: psutil.Process(pid).cmdline() == SLEEP)
    finally:
        kill_parent(parent)


def test_a_grandchild_left_by_a_killed_run_is_gone_before_the_next_start(
    tmp_path: Path, child: Child
) -> None:
    parent, pid = parent_of(tmp_path, ["sh", "-c", "sleep 1000 & echo $! ; wait"])
    log = tmp_path / "sleeper.log"
    wait_until(lambda: log.exists() and bool(log.read_text().strip()))
    grandchild = int(log.read_text())
    kill_parent(parent)
    wait_until(lambda: not is_running(pid))
    assert is_running(grandchild)

    child.start()

    assert not is_running(grandchild)
    assert child.is_alive()


def test_a_marked_process_named_by_the_pid_file_is_killed_before_the_start(
    tmp_path: Path, child: Child
) -> None:
    mark = {**os.environ, RUN_DIR_VARIABLE: str(tmp_path)}
    with subprocess.Popen(SLEEP, start_new_session=True, env=mark) as stale:
        (tmp_path / "sleeper.pid").write_text(str(stale.pid))
        # The kernel shows it a moment after the program has begun.
        environment = Path(f"/proc/{stale.pid}/environ")
        wait_until(lambda: bool(environment.read_bytes()))

        child.start()

        assert stale.wait(60) == -signal.SIGKILL


def test_a_foreign_process_with_the_kept_number_is_not_touched(
    tmp_path: Path, child: Child, bystander: subprocess.Popen[bytes]
) -> None:
    (tmp_path / "sleeper.pid").write_text(str(bystander.pid))

    child.start()

    assert bystander.poll() is None
    assert child.is_alive()


def test_a_process_of_another_run_directory_is_not_touched(tmp_path: Path) -> None:
    one, other = Child("sleeper", SLEEP, tmp_path / "a"), Child("sleeper", SLEEP, tmp_path / "ab")
    other.start()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "sleeper.pid").write_text(str(other.pid))

    one.start()

    assert other.is_alive()
    one.kill()
    other.kill()


def test_a_damaged_pid_file_is_no_obstacle(tmp_path: Path, child: Child) -> None:
    (tmp_path / "sleeper.pid").write_text("?")

    child.start()

    assert (tmp_path / "sleeper.pid").read_text() == f"{child.pid}\n"


def test_stop_asks_first(tmp_path: Path) -> None:
    child = Child(
        "polite",
        ["sh", "-c", "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done"],
        tmp_path,
    )
    child.start()
    wait_until(lambda: "up" in child.tail_of_log())

    child.stop(grace_seconds=5)

    assert (child.exit_code, child.tail_of_log(1)) == (3, "bye")
    assert not (tmp_path / "polite.pid").exists()


def test_stop_kills_the_whole_group_when_the_grace_is_over(tmp_path: Path) -> None:
    child = Child("deaf", ["sh", "-c", "trap '' TERM; sleep 1000 & echo $!; wait; wait"], tmp_path)
    child.start()
    wait_until(lambda: bool(child.tail_of_log()))
    grandchild = int(child.tail_of_log(1))

    child.stop(grace_seconds=0.1)

    assert child.exit_code == -signal.SIGKILL
    assert not is_running(grandchild)


def test_a_child_can_be_killed_twice_and_started_again(child: Child) -> None:
    child.start()
    first = child.pid
    child.kill()
    child.kill()
    assert not child.is_alive()

    child.start()

    assert child.is_alive()
    assert child.pid != first


def test_a_second_start_is_refused_while_the_first_runs(child: Child) -> None:
    child.start()

    with pytest.raises(SetupError, match="already running"):
        child.start()


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="there is no no-such-program"):
        Child("odd", ["no-such-program"], tmp_path).start()


def test_start_is_refused_outside_the_main_thread(child: Child) -> None:
    errors: list[Exception] = []

    def start() -> None:
        try:
            child.start()
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()

    assert "main thread" in str(errors[0])


def test_a_run_directory_has_one_user_at_a_time(tmp_path: Path) -> None:
    with (
        sole_user_of(tmp_path),
        pytest.raises(SetupError, match=f"Process {os.getpid()} already runs"),
        sole_user_of(tmp_path),
    ):
        pass

    with sole_user_of(tmp_path):
        pass


def test_a_log_that_grows_is_moved_aside_once_and_written_on(tmp_path: Path) -> None:
    script = "import sys, time\nwhile True: print('x' * 999, flush=True); time.sleep(0.001)"
    child = Child("chatty", [sys.executable, "-c", script], tmp_path)
    child.start()
    old = tmp_path / "chatty.log.1"
    try:
        for _ in range(2):
            wait_until(lambda: child.log_file.stat().st_size > 50_000)
            child.bound_log(50_000)
            assert child.log_file.stat().st_size < 50_000
        wait_until(lambda: child.log_file.stat().st_size > 0)
    finally:
        child.kill()

    assert old.stat().st_size > 50_000
    assert old.stat().st_mode & 0o077 == 0
    assert child.log_file.read_text().startswith("x")
    assert sorted(path.name for path in tmp_path.glob("chatty.log*")) == [
        "chatty.log",
        "chatty.log.1",
    ]


def test_a_small_log_stays(tmp_path: Path) -> None:
    child = Child("quiet", ["true"], tmp_path)
    child.bound_log()
    child.log_file.write_text("a line\n")

    child.bound_log()

    assert child.log_file.read_text() == "a line\n"


def test_children_that_stop_together_are_all_asked_before_any_is_waited_for(tmp_path: Path) -> None:
    asked = {name: tmp_path / f"{name}.asked" for name in ("one", "other")}
    # Each one ends once both have been asked.
    script = (
        'trap \'touch "$1"; until [ -e "$2" ]; do sleep 0.05; done; exit 7\' TERM; '
        'touch "$1.ready"; while :; do sleep 0.05; done'
    )
    children = [
        Child(mine, ["sh", "-c", script, "sh", str(asked[mine]), str(asked[its])], tmp_path)
        for mine, its in (("one", "other"), ("other", "one"))
    ]
    for child in children:
        child.start()
    wait_until(lambda: len(list(tmp_path.glob("*.ready"))) == 2)

    stop_together(children, 60)

    assert [child.exit_code for child in children] == [7, 7]
    # Those that have never been started, or have ended before, are no matter.
    stop_together([*children, Child("never", SLEEP, tmp_path)], 60)


def test_children_that_do_not_end_together_are_killed(tmp_path: Path) -> None:
    script = 'trap "" TERM; touch "$1"; while :; do sleep 0.05; done'
    children = [
        Child(name, ["sh", "-c", script, "sh", str(tmp_path / f"{name}.ready")], tmp_path)
        for name in ("one", "other")
    ]
    for child in children:
        child.start()
    wait_until(lambda: len(list(tmp_path.glob("*.ready"))) == 2)

    stop_together(children, 0.5)

    assert [child.exit_code for child in children] == [-signal.SIGKILL, -signal.SIGKILL]
