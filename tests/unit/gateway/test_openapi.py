import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from fastapi.security import HTTPBearer
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from gateway import openapi
from gateway.app import build_app
from gateway.file_rules import ExpiresAfter
from gateway.openapi_errors import REFUSALS
from gateway.settings import GatewaySettings
from shared.openai.endpoints import ENDPOINTS
from shared.openai.shapes import ErrorEnvelope
from shared.openai.webhooks import EVENT_TYPES
from shared.outbound import url_pattern
from tests.bodies import CLOSED, GOOD, OPEN

Json = dict[str, Any]


class _ChangeThing(BaseModel):
    end: ExpiresAfter


def _an_upload(**changes: Any) -> Json:
    return {"bytes": 5, "filename": "rows.jsonl", "mime_type": "", **changes}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> GatewaySettings:
    catalog = tmp_path_factory.mktemp("catalog") / "catalog.yaml"
    catalog.write_text("pools:\n  cpu: {resources: {CPU: 1}}\nmodels:\n  tiny: {pools: [cpu]}\n")
    return GatewaySettings.model_validate(
        {
            "amqp_url": "amqp://nowhere",
            "redis_url": "redis://nowhere",
            "s3_endpoint": "http://nowhere",
            "s3_access_key": "a",
            "s3_secret_key": "s",
            "catalog": catalog,
            "completion_windows": ("24h", "7d"),
            "max_metadata_pairs": 3,
        }
    )


@pytest.fixture(scope="module")
def document(settings: GatewaySettings) -> Json:
    # As clients get it.
    found: Json = json.loads(json.dumps(build_app(settings).openapi()))
    return found


def test_operations_have_openais_names(document: Json) -> None:
    names = [operation["operationId"] for _, operation in _operations(document)]

    assert len(set(names)) == len(names)
    assert set(names) >= {
        *("createFile", "listFiles", "retrieveFile", "deleteFile", "downloadFile"),
        *("createBatch", "listBatches", "retrieveBatch", "cancelBatch"),
        *("listModels", "retrieveModel"),
    }


def test_the_lines_of_an_input_are_told_with_the_fields_that_they_may_have(
    document: Json,
) -> None:
    lines = {
        path: row["properties"]["body"]
        for name, row in document["components"]["schemas"].items()
        if name.endswith("Row")
        for path in row["properties"]["url"]["enum"]
    }

    assert lines.keys() == ENDPOINTS.keys()
    for path in GOOD:
        endpoint = ENDPOINTS[path]
        assert lines[path]["properties"].keys() == endpoint.fields
        checker = Draft202012Validator({**document, **lines[path]})
        for change in [{}, *(change for where, change in OPEN if where == path)]:
            body = {name: value for name, value in {**GOOD[path], **change}.items() if value}
            assert [error.message for error in checker.iter_errors(body)] == []
        closed = next(change for where, change, _ in CLOSED if where == path)
        assert not checker.is_valid({**GOOD[path], **closed})


def test_every_reference_leads_somewhere(document: Json) -> None:
    wrong = [ref for ref in _references(document) if _resolved(document, {"$ref": ref}) is None]

    assert wrong == []


def test_every_call_of_a_caller_has_its_errors(document: Json) -> None:
    for path, operation in _operations(document):
        if not path.startswith("/v1/"):
            continue
        statuses = set(operation["responses"])
        places = {one["in"] for one in operation.get("parameters", ())}
        assert statuses >= {"200", "401", "429", "500", "503"}, path
        assert ("404" in statuses) or ("path" not in places), path
        assert ("400" in statuses) or not (places - {"path"}), path
        assert ({"400", "413"} <= statuses) or ("requestBody" not in operation), path
        assert not statuses & {"422", "4XX", "5XX", "default"}, path


def test_an_error_that_an_operation_alone_has_is_told_there(document: Json) -> None:
    operations = {operation["operationId"]: operation for _, operation in _operations(document)}

    for name, refusals in REFUSALS.items():
        responses = operations[name]["responses"]
        for status, body in refusals.items():
            media = responses[status]["content"]["application/json"]
            assert media["example"]["error"]["message"] == body.message


def test_every_error_has_the_envelope_and_the_headers_of_every_answer(document: Json) -> None:
    for path, operation in _operations(document):
        for status, response in operation["responses"].items():
            found = _resolved(document, response)
            assert found is not None
            assert "x-request-id" in found["headers"], (path, status)
            if path.startswith("/v1/") and int(status) >= 400:
                media = found["content"]["application/json"]
                assert media["schema"] == {"$ref": "#/components/schemas/ErrorEnvelope"}
                assert set(media["example"]["error"]) == {"message", "type", "param", "code"}


def test_everything_has_an_example_that_its_schema_allows(document: Json) -> None:
    wrong = []
    for where, place in _examined(document):
        if "example" not in place:
            wrong.append(f"{where}: none")
            continue
        schema = {**place["schema"], "components": document["components"]}
        wrong += [
            f"{where}: {error.message}"
            for error in Draft202012Validator(schema).iter_errors(place["example"])
        ]

    assert wrong == []


def test_the_key_is_the_security_of_every_call_of_a_caller(document: Json) -> None:
    (scheme,) = document["components"]["securitySchemes"].items()
    name, words = scheme

    assert (words["type"], words["scheme"]) == ("http", "bearer")
    for path, operation in _operations(document):
        assert operation.get("security", []) == ([{name: []}] if path.startswith("/v1/") else [])


def test_links_lead_from_what_was_made_to_who_takes_it(document: Json) -> None:
    names = {operation["operationId"] for _, operation in _operations(document)}
    links = [
        link["operationId"]
        for _, operation in _operations(document)
        for link in operation["responses"]["200"].get("links", {}).values()
    ]

    assert {"retrieveFile", "downloadFile", "cancelBatch", "retrieveModel"} <= set(links) <= names


def test_bodies_are_documented_as_this_gateway_is_set(document: Json) -> None:
    retry = _body(document, "retryBatch")["properties"]
    create = _body(document, "createWebhookEndpoint")["properties"]

    assert retry["completion_window"]["anyOf"][0]["enum"] == ["24h", "7d"]
    assert retry["metadata"]["anyOf"][0]["maxProperties"] == 3
    assert create["url"]["pattern"] == url_pattern(is_http_allowed=False)
    assert create["event_types"]["items"]["enum"] == list(EVENT_TYPES)
    assert _body(document, "updateBatch")["minProperties"] == 1


@pytest.mark.parametrize(
    ("operation", "body", "is_valid"),
    [
        ("updateBatch", {}, False),
        ("updateBatch", {"metadata": None}, True),
        ("updateBatch", {"priority": 5.0}, True),
        ("createWebhookEndpoint", {"name": "n", "url": "", "event_types": [EVENT_TYPES[0]]}, False),
        (
            "createWebhookEndpoint",
            {"name": "n", "url": "HTTPS://A.b", "event_types": [EVENT_TYPES[0]]},
            True,
        ),
        ("createWebhookEndpoint", {"name": "n", "url": "https://a.b", "event_types": []}, False),
        ("updateWebhookEndpoint", {"event_types": ["batch.paused"]}, False),
        ("testWebhookEndpoint", {"event_type": "batch.paused"}, False),
        ("retryBatch", {"completion_window": "1h"}, False),
        ("retryBatch", {"completion_window": None}, True),
        ("createUpload", _an_upload(purpose="batch", bytes=10**9), False),
        ("createUpload", _an_upload(purpose="user_data", bytes=10**9), True),
        ("createUpload", _an_upload(purpose="batch", filename="rows.csv"), False),
        ("createUpload", _an_upload(purpose="batch", filename="a.b/rows.JSONL"), True),
        ("createUpload", _an_upload(purpose="batch", filename="upload"), True),
    ],
)
def test_the_document_allows_a_body_just_where_the_gateway_does(
    document: Json, operation: str, body: Json, is_valid: bool
) -> None:
    schema = {**_body(document, operation), "components": document["components"]}

    assert Draft202012Validator(schema).is_valid(body) is is_valid


def test_the_event_stream_has_a_schema_of_its_events(document: Json) -> None:
    answer = document["paths"]["/v1/batches/{batch_id}/events"]["get"]["responses"]["200"]
    event = _resolved(document, answer["content"]["text/event-stream"]["schema"]) or {}
    data = _resolved(document, event["properties"]["data"]["contentSchema"]) or {}

    assert "batch.accepted" in event["properties"]["event"]["enum"]
    assert "batch.validating" not in event["properties"]["event"]["enum"]
    assert {"type", "sequence", "paused", "priority", "status"} <= set(data["required"])


def test_what_a_route_says_is_kept_and_completed(settings: GatewaySettings) -> None:
    body = {"application/json": {"schema": _ChangeThing.model_json_schema()}}
    app = FastAPI(generate_unique_id_function=openapi.operation_id)

    @app.post(
        "/v1/things/{thing_id}",
        dependencies=[Depends(HTTPBearer())],
        openapi_extra={"requestBody": {"content": body}},
    )
    async def change_thing(thing_id: str) -> ErrorEnvelope:
        raise NotImplementedError

    openapi.install(app, settings)
    document = app.openapi()

    operation = document["paths"]["/v1/things/{thing_id}"]["post"]
    answers = operation["responses"]
    assert set(answers) == {"200", "400", "401", "403", "404", "409", "413", "429", "500", "503"}
    assert operation["requestBody"]["content"]["application/json"]["example"] == {
        "end": {"anchor": "created_at", "seconds": 3600}
    }
    assert "ExpiresAfter" in document["components"]["schemas"]
    assert list(_examined(document))
    assert [
        ref for ref in _references(document) if _resolved(document, {"$ref": ref}) is None
    ] == []


def _body(document: Json, name: str) -> Json:
    """The schema of an operation's JSON body."""
    [found] = [one for _, one in _operations(document) if one["operationId"] == name]
    schema: Json = found["requestBody"]["content"]["application/json"]["schema"]
    return schema


def _operations(document: Json) -> Iterator[tuple[str, Json]]:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            yield path, operation


def _examined(document: Json) -> Iterator[tuple[str, Json]]:
    """Each place of an example: parameters, bodies and answers."""
    for path, operation in _operations(document):
        for parameter in operation.get("parameters", ()):
            yield f"{path} {parameter['name']}", parameter
        for media in operation.get("requestBody", {}).get("content", {}).values():
            yield f"{path} body", media
        for status, response in operation["responses"].items():
            found = _resolved(document, response) or {}
            if media := found.get("content", {}).get("application/json"):
                yield f"{path} {status}", media


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(ref := node.get("$ref"), str):
            yield ref
        for child in node.values():
            yield from _references(child)
    elif isinstance(node, list):
        for child in node:
            yield from _references(child)


def _resolved(document: Json, node: Json) -> Json | None:
    found: Any = node
    while isinstance(found, dict) and "$ref" in found:
        steps = found["$ref"].removeprefix("#/").split("/")
        found = document
        for step in steps:
            found = found.get(step) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else None
