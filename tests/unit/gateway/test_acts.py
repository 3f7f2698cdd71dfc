import pytest
from fastapi.routing import APIRoute
from hypothesis import given
from hypothesis import strategies as st

from gateway import (
    admin,
    batch_controls,
    batches,
    cache,
    events,
    explain,
    files,
    models,
    open_batches,
    organization,
    results,
    retry,
    tenant_limits,
    uploads,
    webhook_deliveries,
    webhooks,
)
from gateway.acts import ACTS, object_of
from gateway.scopes import needed_scope
from gateway.ui import (
    batch_acts,
    batch_list,
    batch_page,
    batch_results,
    event_list,
    fleet_page,
    new_batch,
    sign_in,
)
from shared import ids
from shared.openai.endpoints import ENDPOINTS
from shared.scopes import Scope

_MODULES = (
    admin,
    batch_controls,
    batches,
    cache,
    events,
    explain,
    files,
    models,
    open_batches,
    organization,
    results,
    retry,
    tenant_limits,
    uploads,
    webhook_deliveries,
    webhooks,
)
_CALLS = {
    (method, f"/v1{route.path}")
    for module in _MODULES
    for route in module.router.routes
    if isinstance(route, APIRoute)
    for method in route.methods
}.union(("POST", path) for path in ENDPOINTS)
_PAGE = {
    (method, f"/ui{route.path}")
    for module in (
        batch_acts,
        batch_list,
        batch_page,
        batch_results,
        event_list,
        fleet_page,
        new_batch,
        sign_in,
    )
    for route in module.router.routes
    if isinstance(route, APIRoute)
    for method in route.methods
}
#: The calls that change nothing and give away the contents of files.
_CONTENTS = {
    ("GET", "/v1/files/{file_id}/content"),
    ("GET", "/v1/batches/{batch_id}/results"),
    ("GET", "/ui/files/{file_id}/content"),
    ("GET", "/ui/batches/{batch_id}/results"),
    ("GET", "/ui/batches/{batch_id}/failed"),
}


def test_each_call_that_changes_something_or_reads_contents_is_an_act() -> None:
    # A live call changes nothing that is kept.
    changes = {call for call in _CALLS | _PAGE if call[0] != "GET" and call[1] not in ENDPOINTS}

    assert changes | _CONTENTS == set(ACTS)
    assert {call for call in ACTS if call[1].startswith("/ui/")} <= _PAGE


def test_an_act_has_the_same_name_at_the_api_and_on_the_page() -> None:
    names = [act for (_, path), act in ACTS.items() if path.startswith("/v1/")]

    assert len(set(names)) == len(names)
    page = {act for (_, path), act in ACTS.items() if path.startswith("/ui/")}
    assert page - set(names) == {
        "dead_letter.replayed",
        "session.closed",
        "session.opened",
    }


def test_each_call_needs_the_scope_of_what_it_does() -> None:
    scopes = {call: needed_scope(*call) for call in _CALLS}

    assert {call for call, scope in scopes.items() if scope is Scope.READ} == {
        call for call in _CALLS if call[0] == "GET" and not call[1].startswith("/v1/admin/")
    }
    assert {call[1].split("/")[2] for call, scope in scopes.items() if scope is Scope.OPERATOR} == {
        "admin"
    }
    assert {call[1].split("/")[2] for call, scope in scopes.items() if scope is Scope.ADMIN} == {
        "webhook_endpoints"
    }
    assert {call[1] for call, scope in scopes.items() if scope is Scope.LIVE} == set(ENDPOINTS)
    assert {call[1].split("/")[2] for call, scope in scopes.items() if scope is Scope.SUBMIT} == {
        "batches",
        "cache",
        "files",
        "uploads",
    }


@pytest.mark.parametrize(
    "made",
    [
        ids.batch_id("acme", "m"),
        ids.new_file_id(),
        ids.input_file_id("batch"),
        ids.new_upload_id(),
        ids.new_webhook_endpoint_id(),
        ids.new_webhook_test_id(),
        ids.api_key_id(ids.api_key_digest("sk-x")),
    ],
)
def test_an_id_of_ours_in_a_path_is_the_object(made: str) -> None:
    assert object_of({"batch_id": made, "other": "x"}) == made


@given(st.text())
def test_what_a_client_makes_up_is_never_told(text: str) -> None:
    assert object_of({"batch_id": text}) in (None, text if ids.is_id(text) else None)
    assert object_of({"batch_id": f"batch_{text} secret"}) is None
