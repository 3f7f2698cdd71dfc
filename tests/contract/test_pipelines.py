"""Pipelines on real processes: rows go from stage to stage while others still run."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.contract.conftest import CHAT, EMBEDDER, FINAL, MODEL, Caller
from tests.contract.user_commands import Command
from tests.eventually import wait_until

_POSTS = [
    {"id": "a", "text": "one two three four five six"},
    {"id": "b", "text": "short"},
    {"id": "c", "text": "seven eight nine ten eleven twelve"},
    {"id": "d", "text": "short"},
    {"id": "e", "text": None},
]


def _ask(text: str, **changes: Any) -> dict[str, Any]:
    template = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
    return {"call": {"endpoint": CHAT, "template": template, **changes}}


def _embed(column: str) -> dict[str, Any]:
    template = {"model": EMBEDDER, "input": f"{{{{ {column} }}}}"}
    return {"call": {"endpoint": "/v1/embeddings", "template": template}}


def _declared(acme: Caller, *stages: dict[str, Any], **changes: Any) -> dict[str, Any]:
    rows = b"".join(json.dumps(one).encode() + b"\n" for one in _POSTS)
    file_id = acme.openai.files.create(file=("posts.jsonl", rows), purpose="user_data").id
    source = {"file_id": file_id, "columns": ["text"], "custom_id": "id"}
    return {"input": source, "stages": list(stages), **changes}


def _create(acme: Caller, *stages: dict[str, Any], **changes: Any) -> str:
    answer = acme.http.post("/v1/pipelines", json=_declared(acme, *stages, **changes))
    assert answer.status_code == 200, answer.text
    pipeline: dict[str, Any] = answer.json()
    assert (pipeline["object"], pipeline["status"]) == ("pipeline", "in_progress")
    return str(pipeline["id"])


def _get(acme: Caller, pipeline_id: str) -> dict[str, Any]:
    answer = acme.http.get(f"/v1/pipelines/{pipeline_id}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def _ended(acme: Caller, pipeline_id: str, timeout: float = 120) -> dict[str, Any]:
    wait_until(lambda: _get(acme, pipeline_id)["status"] in FINAL, timeout)
    return _get(acme, pipeline_id)


def test_rows_go_through_all_stages(acme: Caller) -> None:
    pipeline_id = _create(
        acme,
        {"split": {"column": "text", "tokens": 3, "into": "chunk"}},
        {"filter": "'nine' not in chunk"},
        {"deduplicate": ["chunk"]},
        _ask("Sum up: {{ chunk }}", answer="summary"),
        {"filter": "summary"},
        _embed("summary"),
    )

    ended = _ended(acme, pipeline_id)

    assert ended["status"] == "completed"
    rows = {row["custom_id"]: row for row in acme.lines(ended["output_file_id"])}
    [error] = acme.lines(ended["error_file_id"])
    assert (error["custom_id"], error["stage"], error["error"]["code"]) == ("e", 0, "no_text")
    split, filter_, once, call, _, embed = ended["stages"]
    assert (split["failed"], filter_["dropped"], once["dropped"]) == (1, 1, 1)
    assert call["request_counts"]["completed"] == embed["request_counts"]["completed"] == len(rows)
    assert ended["rows"] == len(rows)
    assert ended["rows_read"] == len(_POSTS)
    assert ended["request_counts"]["total"] == 2 * len(rows)
    for name, row in rows.items():
        assert row["chunk"] in row["text"]
        assert row["summary"]
        assert row["embedding"]
        assert name.startswith(("a#", "b#", "c#"))
    batch = acme.batch(call["batch_id"])
    assert (batch["pipeline"], batch["status"]) == (pipeline_id, "completed")


def test_a_stage_takes_rows_while_the_one_before_runs(acme: Caller) -> None:
    pipeline_id = _create(acme, _ask("{{ text }}"), _ask("{{ answer }}", answer="second"))

    ended = _ended(acme, pipeline_id)

    first, second = ended["stages"]
    assert ended["status"] == "completed"
    assert first["request_counts"]["total"] == second["request_counts"]["total"] == len(_POSTS)
    names = [line["custom_id"] for line in acme.lines(ended["output_file_id"])]
    assert sorted(names) == ["a", "b", "c", "d", "e"]


def test_rows_that_came_through_become_a_table_in_the_order_of_the_input(acme: Caller) -> None:
    output = {"format": "csv", "columns": {"id": "custom_id", "said": "answer"}}
    pipeline_id = _create(acme, _ask("{{ text }}"), output=output)

    ended = _ended(acme, pipeline_id)

    table = ended["table"]
    assert (table["format"], table["rows"], table["error"]) == ("csv", len(_POSTS), None)
    [file_id] = table["file_ids"]
    rows = list(csv.DictReader(io.StringIO(acme.openai.files.content(file_id).text)))
    assert [row["id"] for row in rows] == ["a", "b", "c", "d", "e"]
    lines = acme.lines(ended["output_file_id"])
    assert [row["said"] for row in rows] == [line["answer"] for line in lines]
    refused = acme.http.post(
        "/v1/pipelines",
        json=_declared(acme, _ask("{{ text }}"), output={"columns": ["nothing"]}),
    )
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "output.columns")


def test_the_commands_take_rows_tables_and_failures(acme: Caller, tmp_path: Path) -> None:
    command = Command(acme, tmp_path)
    command.file("posts.jsonl", b"".join(json.dumps(one).encode() + b"\n" for one in _POSTS))
    source = {"columns": ["text"], "custom_id": "id"}
    fails = {"filter": "text|length + 1 // (text|length - 5)"}
    declared = {"input": source, "stages": [fails, _ask("{{ text }}")]}
    (tmp_path / "rows.yaml").write_text(json.dumps(declared))
    (tmp_path / "table.yaml").write_text(json.dumps({**declared, "output": {"format": "csv"}}))

    ran = command("pipeline", "run", "table.yaml", "posts.jsonl", "--table")
    [pipeline] = acme.http.get("/v1/pipelines").json()["data"]
    again = command("pipeline", "fetch", pipeline["id"], "-o", str(tmp_path))
    command("pipeline", "fetch", pipeline["id"], "--failed", "-o", str(tmp_path))
    failed = command("pipeline", "fetch", pipeline["id"], "--failed", "--wait")
    refused = [
        command("pipeline", "run", "rows.yaml", "posts.jsonl", "--table"),
        command("pipeline", "run", "table.yaml", "nowhere.jsonl"),
        command("pipeline", "fetch", pipeline["id"], "--failed", "--table"),
    ]

    # Rows have failed, so a script hears of it as it does of a batch.
    assert ran.code == again.code == failed.code == 3, ran.err + again.err + failed.err
    assert f"batchyard pipeline fetch {pipeline['id']} --failed" in ran.err
    assert f"{pipeline['id']}: in_progress, " in ran.err
    table = list(csv.DictReader(io.StringIO(ran.out)))
    lines = (tmp_path / f"{pipeline['id']}.jsonl").read_text().splitlines()
    rows = [json.loads(one) for one in lines]
    assert [one["custom_id"] for one in table] == [one["custom_id"] for one in rows] == ["a", "c"]
    assert [one["custom_id"] for one in failed.records()] == ["b", "d", "e"]
    assert (tmp_path / f"{pipeline['id']}.failed.jsonl").read_text() == failed.out
    assert [one.code for one in refused] == [2, 2, 2]
    assert "no 'output'" in refused[0].err
    assert "nowhere.jsonl" in refused[1].err
    assert "Use one." in refused[2].err
    assert len(acme.http.get("/v1/pipelines").json()["data"]) == 1


def test_rows_are_asked_again_where_a_call_says_so(acme: Caller) -> None:
    schema = {"type": "object", "properties": {"ONE": {"type": "integer"}}, "required": ["ONE"]}
    fits = '{"one": {{ text|length }}}'
    said = f"{{% if text == 'short' %}}{fits}{{% else %}}{{{{ text }}}}{{% endif %}}"
    pipeline_id = _create(acme, _ask(said, schema=schema, retries=2))

    ended = _ended(acme, pipeline_id)

    [stage] = ended["stages"]
    assert acme.batch(stage["batch_id"])["asked_again"] == 2 * 3
    rows = {row["custom_id"]: row["ONE"] for row in acme.lines(ended["output_file_id"])}
    failed = {row["custom_id"]: row["error"] for row in acme.lines(ended["error_file_id"])}
    assert rows == {"b": 5, "d": 5}
    assert {name: error["code"] for name, error in failed.items()} == dict.fromkeys(
        "ace", "invalid_answer"
    )


def test_rows_that_were_answered_in_an_earlier_pipeline_are_not_asked_again(acme: Caller) -> None:
    stages = _ask("{{ text }}", cache=True), _ask("{{ answer }}", answer="second", cache=True)
    first = _ended(acme, _create(acme, *stages))
    again = _ended(acme, _create(acme, *stages))
    other = _ended(acme, _create(acme, _ask("{{ text }}"), stages[1]))

    assert [[one["cached"] for one in run["stages"]] for run in (again, other)] == [
        # The row without a text is no request that could be answered.
        [len(_POSTS) - 1, len(_POSTS)],
        [0, len(_POSTS)],
    ]
    assert [one["cached"] for one in first["stages"]] == [0, 0]
    assert again["usage"]["total_tokens"] < first["usage"]["total_tokens"] / 5
    assert again["request_counts"] == first["request_counts"]
    output = [acme.lines(run["output_file_id"]) for run in (first, again, other)]
    assert output[0] == output[1] == output[2]
    acme.http.delete("/v1/cache")


def test_only_the_pipeline_adds_to_its_batches(acme: Caller) -> None:
    pipeline_id = _create(acme, _ask("{{ text }}"))
    [stage] = _get(acme, pipeline_id)["stages"]

    added = acme.http.post(f"/v1/batches/{stage['batch_id']}/requests", content=b"{}")
    closed = acme.http.post(f"/v1/batches/{stage['batch_id']}/close")

    assert (added.status_code, closed.status_code) == (409, 409)
    assert pipeline_id in added.json()["error"]["message"]
    assert _ended(acme, pipeline_id)["status"] == "completed"


def test_a_cancelled_pipeline_cancels_all_its_batches(acme: Caller) -> None:
    pipeline_id = _create(acme, _ask("{{ text }}"), _ask("{{ answer }}", answer="second"))

    answer = acme.http.post(f"/v1/pipelines/{pipeline_id}/cancel")

    assert answer.status_code == 200, answer.text
    ended = _ended(acme, pipeline_id)
    assert ended["status"] == "cancelled"
    assert {stage["status"] for stage in ended["stages"]} <= {"cancelled", "completed"}
    again = acme.http.post(f"/v1/pipelines/{pipeline_id}/cancel")
    assert again.json()["status"] == "cancelled"


def test_what_is_not_kept_is_deleted_at_the_end(acme: Caller) -> None:
    pipeline_id = _create(
        acme, _ask("{{ text }}", keep=False), _ask("{{ answer }}", answer="second")
    )

    ended = _ended(acme, pipeline_id)

    first, second = ended["stages"]
    gone = acme.http.get(f"/v1/files/{first['output_file_id']}")
    kept = acme.http.get(f"/v1/files/{second['output_file_id']}")
    assert (gone.status_code, kept.status_code) == (404, 200)


@pytest.mark.parametrize(
    ("stage", "param", "code"),
    [
        (_ask("{{ nothing }}"), "stages[0].call.template.messages[0].content", "unknown_column"),
        ({"call": {"endpoint": CHAT}}, "stages[0].call.template", "missing_required_parameter"),
        ({"filter": "text", "extra": 1}, "stages[0].extra", "unknown_parameter"),
        (_ask("{{ text }}", retries=1), "stages[0].call.retries", "invalid_value"),
        (_ask("{{ text }}", cache=1), "stages[0].call.cache", "invalid_type"),
        (_ask("{{ text }}", cache=True, keep=False), "stages[0].call.cache", "invalid_value"),
        (
            {"call": {"endpoint": CHAT, "template": {"model": "none"}}},
            "stages[0].call.template.model",
            "model_not_found",
        ),
    ],
)
def test_a_bad_declaration_is_refused_with_its_place(
    acme: Caller, stage: dict[str, Any], param: str, code: str
) -> None:
    answer = acme.http.post("/v1/pipelines", json=_declared(acme, stage))

    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)


def test_the_same_key_is_the_same_pipeline(acme: Caller) -> None:
    body = _declared(acme, _ask("{{ text }}"))
    headers = {"idempotency-key": "the same"}

    first = acme.http.post("/v1/pipelines", json=body, headers=headers).json()
    second = acme.http.post("/v1/pipelines", json=body, headers=headers).json()
    other = {**body, "priority": 7}
    conflict = acme.http.post("/v1/pipelines", json=other, headers=headers)

    assert first["id"] == second["id"]
    assert conflict.status_code == 409
    listed = acme.http.get("/v1/pipelines").json()["data"]
    assert [one["id"] for one in listed].count(first["id"]) == 1
    assert _ended(acme, first["id"])["status"] == "completed"
