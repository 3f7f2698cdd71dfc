import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.__main__ import app


def _line(custom_id: str, **body: Any) -> str:
    request = {"model": "m", "messages": [{"role": "user", "content": "x"}], **body}
    return json.dumps(
        {
            "custom_id": custom_id,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": request,
        }
    )


@pytest.mark.parametrize(
    ("lines", "code", "valid"),
    [
        ([_line("a"), _line("b")], 0, True),
        ([_line("a"), _line("b", max_tokens=-1)], 3, False),
        ([_line("a"), _line("a")], 4, False),
        (["nothing"], 4, False),
        ([], 4, False),
    ],
)
def test_a_file_is_judged_without_a_server(
    lines: list[str], code: int, valid: bool, tmp_path: Path
) -> None:
    (tmp_path / "in.jsonl").write_text("\n".join(lines))

    ended = CliRunner().invoke(app, ["check", str(tmp_path / "in.jsonl")])

    assert (ended.exit_code, json.loads(ended.stdout)["valid"]) == (code, valid)


def test_models_are_checked_only_if_they_are_named(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(_line("a"))

    any_model = CliRunner().invoke(app, ["check", str(tmp_path)])
    other = CliRunner().invoke(app, ["check", str(tmp_path), "--model", "n"])

    assert any_model.exit_code == 0
    [error] = json.loads(other.stdout)["errors"]
    assert (other.exit_code, error["code"], error["line"]) == (4, "model_not_found", 1)


def test_each_refused_request_has_its_line_and_field(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(_line("a") + "\n" + _line("b", max_tokens=-1))

    ended = CliRunner().invoke(app, ["check", str(tmp_path)])

    [refused] = json.loads(ended.stdout)["refused"]
    assert (refused["line"], refused["param"]) == (2, "body.max_tokens")


def test_media_in_s3_are_for_a_server_to_judge(tmp_path: Path) -> None:
    lines = [
        _line(url, messages=[{"role": "user", "content": [{"image_url": url}]}])
        for url in ("s3://bucket/inbox/acme/a.png", "ftp://host/a.png")
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))

    ended = CliRunner().invoke(app, ["check", str(tmp_path)])

    assert [refused["line"] for refused in json.loads(ended.stdout)["refused"]] == [2]
