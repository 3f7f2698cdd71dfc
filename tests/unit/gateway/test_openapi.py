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
from gateway.fields import ExpiresAfter
from gateway.settings import GatewaySettings
from shared.openai.shapes import ErrorEnvelope

Json = dict[str, Any]


class _Wish(BaseModel):
    end: ExpiresAfter


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Json:
    catalog = tmp_path_factory.mktemp("catalog") / "catalog.yaml"
    catalog.write_text("pools:\n  cpu: {resources: {CPU: 1}}\nmodels:\n  tiny: {pools: [cpu]}\n")
    settings = GatewaySettings.model_validate(
        {
            "amqp_url": "amqp://nowhere",
            "redis_url": "redis://nowhere",
            "s3_endpoint": "http://nowhere",
            "s3_access_key": "a",
            "s3_secret_key": "s",
            "catalog": catalog,
        }
    )
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

    assert {"retrieveFile", "downloadFile", "createBatch", "cancelBatch"} <= set(links) <= names


def test_what_a_decorator_says_is_kept_and_made_whole() -> None:
    refusal = {"error": {"message": "No.", "type": "t", "param": None, "code": None}}
    body = {"application/json": {"schema": _Wish.model_json_schema()}}
    app = FastAPI(generate_unique_id_function=openapi.operation_id)

    @app.post(
        "/v1/things/{thing_id}",
        dependencies=[Depends(HTTPBearer())],
        responses={400: {"content": {"application/json": {"example": refusal}}}},
        openapi_extra={"requestBody": {"content": body}},
    )
    async def change_thing(thing_id: str) -> ErrorEnvelope:
        raise NotImplementedError

    openapi.install(app)
    document = app.openapi()

    operation = document["paths"]["/v1/things/{thing_id}"]["post"]
    answers = operation["responses"]
    assert answers["400"]["content"]["application/json"] == {
        "example": refusal,
        "schema": {"$ref": "#/components/schemas/ErrorEnvelope"},
    }
    assert set(answers) == {"200", "400", "401", "404", "409", "413", "429", "500", "503"}
    assert operation["requestBody"]["content"]["application/json"]["example"] == {
        "end": {"anchor": "created_at", "seconds": 3600}
    }
    assert "ExpiresAfter" in document["components"]["schemas"]
    assert list(_examined(document))
    assert [
        ref for ref in _references(document) if _resolved(document, {"$ref": ref}) is None
    ] == []


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
