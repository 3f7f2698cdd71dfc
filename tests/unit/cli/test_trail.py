import getpass
import json
from pathlib import Path
from typing import Any

import pytest

from cli.trail import TRAIL_FILE, told
from shared.errors import NotFoundError


@pytest.fixture(autouse=True)
def _no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BATCHYARD_TRAIL_FILE", raising=False)


def test_an_act_is_told_in_the_fleets_folder_with_its_operator(tmp_path: Path) -> None:
    with told(tmp_path, "key.revoked", about="key_1") as act:
        act.tenant = "acme"

    [line] = _lines(tmp_path / TRAIL_FILE)
    assert {name: line[name] for name in line if name != "at"} == {
        "act": "key.revoked",
        "door": "cli",
        "result": "done",
        "tenant": "acme",
        "operator": getpass.getuser(),
        "object": "key_1",
    }


def test_a_variable_names_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHYARD_TRAIL_FILE", str(tmp_path / "other.jsonl"))

    with told(tmp_path, "key.revoked", about="key_1"):
        pass

    assert [path.name for path in tmp_path.iterdir()] == ["other.jsonl"]


def test_without_a_folder_lines_go_to_standard_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with told(tmp_path / "nowhere", "key.revoked", about="key_1"):
        pass

    out, err = capfd.readouterr()
    assert (out, json.loads(err)["act"]) == ("", "key.revoked")


@pytest.mark.parametrize(
    ("error", "result"), [(NotFoundError("no"), "refused"), (KeyboardInterrupt(), "failed")]
)
def test_an_act_that_breaks_off_is_told_with_the_kind_of_error(
    error: BaseException, result: str, tmp_path: Path
) -> None:
    with pytest.raises(type(error)), told(tmp_path, "key.revoked", about="key_1"):
        raise error

    [line] = _lines(tmp_path / TRAIL_FILE)
    assert (line["result"], line["why"], line["object"]) == (result, type(error).__name__, "key_1")


def test_of_several_objects_each_is_told_when_it_is_done(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError), told(tmp_path, "dead_row.replayed") as act:
        act.done("row-1", made="batch_1")
        raise NotFoundError("no")

    lines = _lines(tmp_path / TRAIL_FILE)
    assert [(line["result"], line.get("object"), line.get("made")) for line in lines] == [
        ("done", "row-1", "batch_1"),
        ("refused", None, None),
    ]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
