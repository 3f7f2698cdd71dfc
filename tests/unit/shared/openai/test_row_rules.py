from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.openai.bodies import Refusal, read_body
from shared.openai.endpoints import ENDPOINTS
from shared.openai.row_limits import RowLimits
from shared.openai.row_rules import DEFAULT_RULES, FORMER_NAMES, RowRules
from tests.bodies import (
    CHAT,
    CLOSED,
    EMBEDDINGS,
    GOOD,
    MESSAGES,
    ODD,
    OPEN,
    RERANK,
    RESPONSES,
    WRONG,
)


@pytest.mark.parametrize(("path", "change", "param"), CLOSED)
def test_a_closed_field_is_refused_by_its_name(
    path: str, change: dict[str, Any], param: str
) -> None:
    found = DEFAULT_RULES.refusal(path, {**GOOD[path], **change})

    assert found is not None
    assert found.param == param


@pytest.mark.parametrize(("path", "change"), [*((path, {}) for path in GOOD), *OPEN])
def test_what_harms_nobody_is_open(path: str, change: dict[str, Any]) -> None:
    body = {**GOOD[path], **change}

    assert DEFAULT_RULES.refusal(path, body) is None
    assert not isinstance(read_body(ENDPOINTS[path].body, body), Refusal)


@pytest.mark.parametrize(("path", "change", "param"), CLOSED)
def test_an_operator_may_open_a_field(path: str, change: dict[str, Any], param: str) -> None:
    rules = RowRules(extra_fields=frozenset({*change, param.rpartition(".")[2]}))

    assert rules.refusal(path, {**GOOD[path], **change}) is None


@pytest.mark.parametrize(("path", "change"), ODD)
def test_what_the_engine_takes_is_not_refused_for_its_form(
    path: str, change: dict[str, Any]
) -> None:
    names = frozenset(change) - ENDPOINTS[path].fields

    assert RowRules(extra_fields=names).refusal(path, {**GOOD[path], **change}) is None


def test_a_refusal_quotes_no_value_and_no_long_name() -> None:
    body = {**GOOD["/v1/embeddings"], "x" * 1000: "a secret"}

    found = DEFAULT_RULES.refusal("/v1/embeddings", body)

    assert found is not None
    assert "secret" not in found.message
    assert found.param == "x" * 64


_texts = st.sampled_from(["", "x", "nan", "1e999", "image_embeds", "http://x", "data:x"])
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "uuid", "image_url", "url", "content", "format"]), inner
        )
    ),
    max_leaves=8,
)


@pytest.mark.parametrize("path", ENDPOINTS)
@given(data=st.data())
def test_whatever_a_tenant_writes_is_judged(path: str, data: st.DataObject) -> None:
    names = st.sampled_from(sorted(ENDPOINTS[path].fields | {"best_of", "unheard_of"}))
    body = data.draw(st.dictionaries(names, _values, max_size=6))
    rules = RowRules(limits=RowLimits(sequences=2, max_tokens=5, schema_bytes=20))

    found = rules.refusal(path, body)

    assert found is None or (found.param and found.message)
    assert rules.bounded(path, body).keys() >= body.keys()


def test_a_form_that_is_nested_too_deeply_to_be_written_is_too_large() -> None:
    nested: Any = {}
    for _ in range(100_000):
        nested = [nested]

    found = DEFAULT_RULES.refusal("/v1/chat/completions", {"tools": nested})

    assert found is not None
    assert found.param == "tools"


def test_every_wrong_field_is_an_open_one_so_that_its_own_reason_is_told() -> None:
    closed = {(path, name) for path in ENDPOINTS for name in ENDPOINTS[path].body.closed}

    assert {name for path, change, _ in WRONG for name in change if (path, name) in closed} == {
        "cache_salt"
    }


@pytest.mark.parametrize("value", [True, 1, 1.0, "true", "Yes", "on"])
def test_no_answer_that_has_tokens_is_streamed_and_a_vector_is_none(value: object) -> None:
    for path in (CHAT, RESPONSES, MESSAGES):
        found = DEFAULT_RULES.refusal(path, {**GOOD[path], "stream": value})
        assert (found and found.param) == "stream"
    assert DEFAULT_RULES.refusal(EMBEDDINGS, {**GOOD[EMBEDDINGS], "stream": value}) is None


@pytest.mark.parametrize("value", [False, 0, "no", "false", None])
def test_who_says_in_any_way_that_nothing_be_streamed_gets_an_answer(value: object) -> None:
    assert DEFAULT_RULES.refusal(CHAT, {**GOOD[CHAT], "stream": value}) is None


def test_who_takes_an_argument_of_the_sdk_for_a_field_is_told_so() -> None:
    found = DEFAULT_RULES.refusal(CHAT, {**GOOD[CHAT], "extra_body": {"top_k": 1}})

    assert found is not None
    assert (found.param, "beside the other fields" in found.message) == ("extra_body", True)


@pytest.mark.parametrize("name", FORMER_NAMES)
def test_a_former_name_is_refused_with_the_new_one(name: str) -> None:
    new = FORMER_NAMES[name]
    has_it, lacks_it = (RERANK, CHAT) if new == "use_activation" else (CHAT, EMBEDDINGS)

    found = DEFAULT_RULES.refusal(has_it, {**GOOD[has_it], name: ["x"]})

    assert found is not None
    assert found.param == name
    assert f"'{new}'" in found.message
    # Where there is no new one either, it is a field like any other.
    other = DEFAULT_RULES.refusal(lacks_it, {**GOOD[lacks_it], name: ["x"]})
    assert other is not None
    assert "has no such field" in other.message
