import json
import multiprocessing
import subprocess
import sys
from pathlib import Path

from structlog.testing import capture_logs

from shared.monitoring.trail import Act, Trail

_ACT = Act("batch.cancelled", "http", "done", tenant="acme", key_id="key_1", object="batch_1")


def test_an_act_is_one_line_with_what_is_known_of_it(tmp_path: Path) -> None:
    trail = Trail(tmp_path / "trail.jsonl")

    trail.write(_ACT)
    trail.write(_ACT._replace(result="refused", why="404"))

    first, second = map(json.loads, (tmp_path / "trail.jsonl").read_text().splitlines())
    at = first.pop("at")
    assert at.endswith("Z")
    assert second.pop("at") >= at
    assert first == {
        "act": "batch.cancelled",
        "door": "http",
        "result": "done",
        "tenant": "acme",
        "key_id": "key_1",
        "object": "batch_1",
    }
    assert second == {**first, "result": "refused", "why": "404"}


def test_only_its_owner_can_read_the_file(tmp_path: Path) -> None:
    Trail(tmp_path / "trail.jsonl").write(_ACT)

    assert (tmp_path / "trail.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_file_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "trail.jsonl"
    trail = Trail(path)

    trail.write(_ACT)
    path.rename(tmp_path / "old.jsonl")
    trail.write(_ACT)

    assert [len(one.read_text().splitlines()) for one in sorted(tmp_path.iterdir())] == [1, 1]


def test_lines_of_several_processes_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "trail.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_many, args=(path, name)) for name in "abcd"]

    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    tenants = [json.loads(line)["tenant"] for line in path.read_text().splitlines()]
    assert [tenants.count(name * 200) for name in "abcd"] == [200] * 4


def _write_many(path: Path, name: str) -> None:
    for _ in range(200):
        Trail(path).write(_ACT._replace(tenant=name * 200))


def test_without_a_file_lines_go_to_standard_output() -> None:
    code = (
        "from shared.monitoring.trail import Act, Trail\n"
        "Trail(None).write(Act('file.read', 'http', 'done'))"
    )

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)

    assert json.loads(ran.stdout)["act"] == "file.read"


def test_a_line_that_cannot_be_written_is_an_error_of_the_log(tmp_path: Path) -> None:
    with capture_logs() as logs:
        Trail(tmp_path / "no-such-folder" / "trail.jsonl").write(_ACT)

    [entry] = logs
    assert (entry["event"], entry["log_level"]) == ("trail.not_written", "error")
    assert entry["reason"] == "No such file or directory"
    assert (entry["act"], entry["object"]) == ("batch.cancelled", "batch_1")
