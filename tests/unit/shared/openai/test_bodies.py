from typing import Any

import pytest

from shared.openai.bodies import Refusal, read_body
from shared.openai.endpoints import ENDPOINTS
from tests.bodies import GOOD, ODD, WRONG


@pytest.mark.parametrize(("path", "change", "param"), WRONG)
def test_what_the_engine_refuses_is_refused_by_the_name_of_its_field(
    path: str, change: dict[str, Any], param: str
) -> None:
    found = read_body(ENDPOINTS[path].body, {**GOOD[path], **change})

    assert isinstance(found, Refusal)
    assert found.param == param
    assert found.message


@pytest.mark.parametrize(("path", "change"), ODD)
def test_what_only_looks_wrong_is_taken(path: str, change: dict[str, Any]) -> None:
    assert not isinstance(read_body(ENDPOINTS[path].body, {**GOOD[path], **change}), Refusal)


def test_a_refusal_quotes_nothing_of_the_body() -> None:
    for path, change, _ in WRONG:
        secret = {**GOOD[path], **change, "user": ["a secret"]}
        found = read_body(ENDPOINTS[path].body, secret)
        assert isinstance(found, Refusal)
        assert "secret" not in found.message


def test_what_is_no_object_is_no_body() -> None:
    assert read_body(ENDPOINTS["/v1/embeddings"].body, ["x"]) == (None, "Input should be an object")
