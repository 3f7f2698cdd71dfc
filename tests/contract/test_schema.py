"""The gateway against its own OpenAPI document."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.contract.conftest import MODEL, Caller, rows
from tests.contract.engine import REFUSE, WAIT
from tests.contract.receiver import Receiver
from tests.eventually import wait_until
from tests.servers import absent

_CONFIGURATION = Path(__file__).with_name("schemathesis.toml")
#: Calls made up for each operation, and sequences of calls; `make fuzz` asks for more.
_EXAMPLES = os.environ.get("FUZZ_EXAMPLES", "12")
#: The same calls every time, but new ones for `make fuzz`, whose output names the seed.
_IS_LONG = "FUZZ_EXAMPLES" in os.environ
_REPEATABLE = () if _IS_LONG else ("--generation-deterministic",)
#: One code answers all live calls, and their bodies have hundreds of fields.
_LEFT_OUT = r"^/v1/(completions|embeddings|responses|messages|rerank|score)$"
_SELECTED = () if _IS_LONG else ("--exclude-path-regex", _LEFT_OUT)
#: Seconds.
_PATIENCE = 450 + 6 * int(_EXAMPLES)
_QUESTION = {"role": "user", "content": "{{ url }}"}
_CALL = {
    "call": {
        "endpoint": "/v1/chat/completions",
        "template": {"model": MODEL, "messages": [_QUESTION]},
    }
}


@pytest.mark.timeout(_PATIENCE + 60)
def test_no_made_up_call_contradicts_the_document(
    acme: Caller, receiver: Receiver, tmp_path: Path
) -> None:
    if importlib.util.find_spec("schemathesis") is None:
        absent("schemathesis", "PYTHONPATH")
    (tmp_path / "openapi.json").write_text(json.dumps(_with_real_objects(acme, receiver)))

    ended = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "--no-color"),
            *("--config-file", str(_CONFIGURATION)),
            *("run", "openapi.json", "--url", acme.yard.url, "--max-examples", _EXAMPLES),
            *_REPEATABLE,
            *_SELECTED,
        ],
        env={
            **os.environ,
            "CONTRACT_KEY": acme.key,
            "SCHEMATHESIS_HOOKS": "tests.contract.schema_hooks",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )

    # Shown with `-rP`, and where it fails.
    print(ended.stdout, ended.stderr)  # noqa: T201  # as above
    assert ended.returncode == 0
    for phase in ("Examples", "Coverage", "Fuzzing", "Stateful"):
        assert phase in ended.stdout
    # Not by refusing everything: there are more batches than the one made here.
    assert len(acme.openai.batches.list().data) > 1


def _with_real_objects(caller: Caller, receiver: Receiver) -> dict[str, Any]:
    """The served document, in which operations take the ids of objects that exist."""
    document: dict[str, Any] = caller.http.get("/openapi.json").json()
    objects = _objects(caller, receiver)
    # One of the two inputs is required, and only this one is made up here.
    [creates] = document["paths"]["/v1/batches"]["post"]["requestBody"]["content"].values()
    creates["schema"]["required"].append("input_file_id")
    for operation in (one for methods in document["paths"].values() for one in methods.values()):
        real = objects.get(operation["operationId"], {})
        for parameter in operation.get("parameters", ()):
            _allow_only(parameter["schema"], parameter, real.get(parameter["name"]))
        for media in operation.get("requestBody", {}).get("content", {}).values():
            for name, schema in media["schema"].get("properties", {}).items():
                _allow_only(schema, {}, real.get(name))
                if name in real:
                    media["example"][name] = real[name][0]
    return document


def _allow_only(schema: dict[str, Any], place: dict[str, Any], values: list[Any] | None) -> None:
    if values:
        schema["enum"] = values
        place["example"] = values[0]


def _objects(caller: Caller, receiver: Receiver) -> dict[str, dict[str, list[Any]]]:
    """For each operation that takes ids, those of objects that it accepts, by the field's name."""
    urls = ["https://hooks.example/a", "http://hooks.example:8080/?b=c"]
    called, changed, deleted = (_endpoint(caller, receiver) for _ in range(3))
    file, doomed_file = caller.upload(rows("one")), caller.upload(rows("two"))
    # It has a row to retry. Only an ended batch is watched: a stream goes on to the batch's end.
    ended = caller.run(rows("one", REFUSE))["id"]
    running, doomed = (caller.create(rows(WAIT))["id"] for _ in range(2))
    pending, cancelled = (_upload(caller, 1000) for _ in range(2))
    completed = _upload(caller, 4)
    part = caller.openai.uploads.parts.create(completed, data=b"data").id
    caller.openai.uploads.complete(completed, part_ids=[part])

    def deliveries() -> list[dict[str, Any]]:
        answer = caller.http.get(f"/v1/webhook_endpoints/{called}/deliveries")
        found: list[dict[str, Any]] = answer.json()["data"]
        return found

    wait_until(lambda: len(deliveries()) > 0)
    return {
        **_by_id("file_id", file, "retrieveFile", "downloadFile"),
        **_by_id("file_id", doomed_file, "deleteFile"),
        **_by_id("model", MODEL, "retrieveModel"),
        **_by_id("batch_id", ended, "watchBatch"),
        "retryBatch": {"batch_id": [ended], "rows": ["all", "failed"]},
        **_by_id("batch_id", doomed, "cancelBatch"),
        **_by_id(
            "batch_id",
            running,
            *("retrieveBatch", "explainBatch", "pauseBatch", "resumeBatch", "updateBatch"),
        ),
        "readResults": {"batch_id": [running], "offset": [0]},
        **_by_id("upload_id", pending, "createUploadPart"),
        **_by_id("upload_id", cancelled, "cancelUpload"),
        **_by_id(
            "webhook_endpoint_id",
            changed,
            *("retrieveWebhookEndpoint", "rotateWebhookSecret"),
        ),
        **_by_id("webhook_endpoint_id", called, "testWebhookEndpoint", "listWebhookDeliveries"),
        "updateWebhookEndpoint": {"webhook_endpoint_id": [changed], "url": [*urls, None]},
        **_by_id("webhook_endpoint_id", deleted, "deleteWebhookEndpoint"),
        # The header alone has the key: two different ones are refused.
        # A dataset needs objects that exist, and a table columns that do: they have own tests.
        "createBatch": {
            "input_file_id": [file],
            "idempotency_key": [None],
            "input": [None],
            "output": [None],
        },
        # Stages name columns that there are.
        "createPipeline": {
            "input": [{"file_id": file, "columns": ["url"]}],
            "stages": [[_CALL]],
            "output": [None, {"format": "csv", "columns": ["url", "custom_id"]}],
        },
        # Of other tenants, only an operator is told.
        **{
            operation: {"project_ids[]": [[caller.tenant]]}
            for operation in ("listCosts", "usageCompletions", "usageEmbeddings")
        },
        # The name of a form's file is not in the schema, and inputs of batches need theirs.
        "createFile": {"purpose": ["user_data", "evals"]},
        "createWebhookEndpoint": {"url": urls},
        "completeUpload": {"upload_id": [completed], "part_ids": [[part]]},
        "redeliverWebhook": {
            "webhook_endpoint_id": [called],
            "delivery_id": [deliveries()[0]["id"]],
        },
    }


def _by_id(name: str, value: str, *operations: str) -> dict[str, dict[str, list[Any]]]:
    return {operation: {name: [value]} for operation in operations}


def _endpoint(caller: Caller, receiver: Receiver) -> str:
    body = {"name": "hook", "url": receiver.url, "event_types": ["batch.completed"]}
    endpoint_id: str = caller.http.post("/v1/webhook_endpoints", json=body).json()["id"]
    return endpoint_id


def _upload(caller: Caller, size: int) -> str:
    return caller.openai.uploads.create(
        bytes=size, filename="rows.bin", mime_type="text/plain", purpose="user_data"
    ).id
