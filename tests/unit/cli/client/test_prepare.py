import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.__main__ import app


def _file(folder: Path, name: str, numbers: range) -> str:
    lines = [{"custom_id": f"r-{one}", "body": {"model": "m", "a": {"b": 1}}} for one in numbers]
    (folder / name).write_text("\ufeff" + "\n\n".join(map(json.dumps, lines)))
    return str(folder / name)


def _prepared(*arguments: str) -> list[dict[str, Any]]:
    ended = CliRunner().invoke(app, ["prepare", *arguments])
    assert ended.exit_code == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_files_become_one_with_other_fields(tmp_path: Path) -> None:
    files = [_file(tmp_path, "1.jsonl", range(2)), _file(tmp_path, "2.jsonl", range(2, 4))]

    found = _prepared(*files, "--model", "n", "--set", "max_tokens=9", "--set", "a.c=x y")

    assert [one["custom_id"] for one in found] == ["r-0", "r-1", "r-2", "r-3"]
    body = {"model": "n", "a": {"b": 1, "c": "x y"}, "max_tokens": 9}
    assert [one["body"] for one in found] == [body] * 4


def test_a_sample_is_the_same_again_and_each_request_is_as_likely(tmp_path: Path) -> None:
    file = _file(tmp_path, "in.jsonl", range(10))
    drawn = Counter[str]()
    for seed in range(40):
        found = _prepared(file, "--sample", "3", "--seed", str(seed))
        names = [one["custom_id"] for one in found]
        assert len(names) == 3
        assert names == sorted(names)
        drawn.update(names)

    assert _prepared(file, "--sample", "3") == _prepared(file, "--sample", "3")
    assert len(_prepared(file, "--sample", "30")) == 10
    assert all(3 < drawn[f"r-{number}"] < 21 for number in range(10))


def test_a_text_with_half_of_a_surrogate_pair_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"custom_id": "a", "body": {"input": "x\\ud83d"}}\n')

    [found] = _prepared(str(tmp_path / "in.jsonl"), "--model", "n")

    assert found["body"] == {"input": "x\ud83d", "model": "n"}


@pytest.mark.parametrize(
    "line", ["nothing", "[]", '{"body": 3}', '{"body": {"a": 1}}', "[" * 100_000]
)
def test_what_cannot_be_changed_is_named_by_its_place(line: str, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(f'{{"body": {{}}}}\n{line}\n')

    ended = CliRunner().invoke(app, ["prepare", str(tmp_path / "in.jsonl"), "--set", "a.b=1"])

    assert "in.jsonl, line 2: it is no request" in str(ended.exception)


def test_a_field_without_a_value_is_refused(tmp_path: Path) -> None:
    file = _file(tmp_path, "in.jsonl", range(1))

    ended = CliRunner().invoke(app, ["prepare", file, "--set", "max_tokens"])

    assert "write it as NAME=VALUE" in str(ended.exception)
