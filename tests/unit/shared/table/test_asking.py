import json
from typing import Any

import pytest

from shared.table.asking import Asking, asking_text

_SCHEMA = {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]}


def _line(**more: Any) -> bytes:
    return json.dumps({"custom_id": "a", "body": {"model": "m", **more}}).encode()


def _body(answer: str | None) -> bytes:
    return json.dumps({"choices": [{"message": {"content": answer}}]}).encode()


@pytest.mark.parametrize(
    ("answer", "wants"),
    [('{"at": 1}', False), ('{"at": "x"}', True), ("{}", True), ("at 1", True), (None, False)],
)
def test_an_answer_that_does_not_fit_is_asked_for_again(answer: str | None, wants: bool) -> None:
    asking = Asking(asking_text(2, _SCHEMA))

    assert asking.wants_another(_line(), _body(answer), 0) is wants


def test_a_row_is_asked_again_only_so_often() -> None:
    asking = Asking(asking_text(2, _SCHEMA))

    found = [asking.wants_another(_line(), _body("x"), count) for count in range(4)]

    assert found == [True, True, False, False]


@pytest.mark.parametrize(
    ("body", "wants"),
    [({"temperature": 0}, False), ({"seed": 7}, False), ({"temperature": 0.2}, True)],
)
def test_what_would_answer_the_same_is_not_asked_again(body: dict[str, Any], wants: bool) -> None:
    asking = Asking(asking_text(2, _SCHEMA))

    assert asking.wants_another(_line(**body), _body("x"), 0) is wants


def test_a_response_that_is_no_object_and_a_line_that_cannot_be_read_do_no_harm() -> None:
    asking = Asking(asking_text(2, _SCHEMA))

    assert not asking.wants_another(b"{", b"[]", 0)
    assert asking.wants_another(b"{", _body("x"), 0)
