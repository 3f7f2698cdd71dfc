"""OpenAI's contract for every call: errors, headers, keys, tenants."""

import re

import httpx
import pytest
from openai import NotFoundError

from tests.contract.conftest import (
    BROKEN_MODEL,
    EMBEDDER,
    MODEL,
    OTHER_MODEL,
    Caller,
    ServiceYard,
    batch_params,
    row,
    rows,
)

CALLS = [
    ("GET", "/v1/files"),
    ("POST", "/v1/files"),
    ("GET", "/v1/files/x"),
    ("DELETE", "/v1/files/x"),
    ("GET", "/v1/files/x/content"),
    ("GET", "/v1/batches"),
    ("POST", "/v1/batches"),
    ("GET", "/v1/batches/x"),
    ("POST", "/v1/batches/x/cancel"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/x"),
    ("GET", "/v1/nowhere"),
    ("PUT", "/v1/files"),
]
REQUEST_ID = re.compile("req_[0-9a-f]{32}")


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_every_answer_has_a_request_id_and_every_error_the_envelope(
    method: str, path: str, acme: Caller
) -> None:
    answer = acme.http.request(method, path)

    assert REQUEST_ID.fullmatch(answer.headers["x-request-id"])
    assert answer.headers["content-type"] == "application/json"
    if answer.is_error:
        assert set(answer.json()) == {"error"}
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(("method", "path"), CALLS[:11])
def test_so_has_every_call_without_a_key(method: str, path: str, yard: ServiceYard) -> None:
    answer = httpx.request(method, f"{yard.url}{path}")

    assert answer.status_code == 401
    assert REQUEST_ID.fullmatch(answer.headers["x-request-id"])
    assert answer.json()["error"]["message"].startswith("You didn't provide an API key.")


def test_unknown_routes_wrong_verbs_and_wrong_fields(acme: Caller) -> None:
    unknown = acme.http.post("/v1/foo")
    wrong_verb = acme.http.get("/v1/batches/x/cancel")
    wrong_field = acme.http.get("/v1/batches", params={"limit": "many"})

    assert unknown.status_code == 404
    assert unknown.json()["error"]["message"] == "Invalid URL (POST /v1/foo)"
    assert wrong_verb.status_code == 405
    assert wrong_verb.headers["allow"] == "POST"
    assert wrong_verb.json()["error"]["code"] == "method_not_supported"
    assert wrong_field.status_code == 400
    assert wrong_field.json()["error"]["param"] == "limit"


def test_a_creation_answers_200(acme: Caller) -> None:
    uploaded = acme.http.post(
        "/v1/files", files={"file": ("in.jsonl", rows("hello"))}, data={"purpose": "batch"}
    )
    created = acme.http.post("/v1/batches", json=batch_params(uploaded.json()["id"]))

    assert (uploaded.status_code, created.status_code) == (200, 200)


def test_anothers_ids_are_unknown_to_every_verb_and_listing(acme: Caller, globex: Caller) -> None:
    batch = acme.run(rows("hello"))
    file_ids = [batch["input_file_id"], batch["output_file_id"]]

    strange = [
        *(
            globex.http.request(method, f"/v1/files/{file_id}{rest}")
            for file_id in file_ids
            for method, rest in (("GET", ""), ("GET", "/content"), ("DELETE", ""))
        ),
        globex.http.get(f"/v1/batches/{batch['id']}"),
        globex.http.post(f"/v1/batches/{batch['id']}/cancel"),
    ]
    not_there = globex.http.get("/v1/batches/batch_none")
    as_input = globex.http.post("/v1/batches", json=batch_params(batch["input_file_id"]))

    assert {answer.status_code for answer in strange} == {404}
    # Another tenant's object looks like one that does not exist.
    assert strange[-1].json()["error"] == {
        **not_there.json()["error"],
        "message": f"No batch found with id '{batch['id']}'.",
    }
    assert as_input.status_code == 400
    assert as_input.json()["error"]["param"] == "file_id"
    assert globex.openai.files.list().data == []
    assert globex.openai.batches.list().data == []
    assert {file.id for file in acme.openai.files.list()} == set(file_ids)
    assert [one.id for one in acme.openai.batches.list()] == [batch["id"]]


def test_models_are_retrieved_slashes_and_all(acme: Caller) -> None:
    listed = [model.id for model in acme.openai.models.list()]

    assert listed == [MODEL, OTHER_MODEL, BROKEN_MODEL, EMBEDDER]
    assert [acme.openai.models.retrieve(name).id for name in listed] == listed
    assert acme.http.get("/v1/models/org%2Fother-1.5").json()["id"] == OTHER_MODEL
    with pytest.raises(NotFoundError) as refused:
        acme.openai.models.retrieve("org/none")
    assert refused.value.code == "model_not_found"


def test_a_model_with_a_slash_runs_batches(acme: Caller) -> None:
    batch = acme.run(row("a", model=OTHER_MODEL))

    assert (batch["status"], batch["model"]) == ("completed", OTHER_MODEL)
