"""What is said of the requests of an input that get an error for what they ask for."""

from typing import Any

from shared.input.validation import InputCheck
from tests.bodies import CHAT
from tests.unit.shared.input.test_validation import line

_PICTURE = {"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}
_BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def _checked(lines: list[bytes], *, is_strict: bool = True) -> InputCheck:
    check = InputCheck(CHAT, {"m": frozenset({CHAT})}, is_strict=is_strict)
    for one in lines:
        check.feed(one + b"\n")
    check.finish()
    return check


def test_each_field_is_told_once_with_its_requests_and_the_first_line() -> None:
    bodies = [
        _BODY,
        {**_BODY, "guided_json": {"type": "object"}},
        {**_BODY, "guided_json": {"type": "object"}, "no_such_field": 1},
        {**_BODY, "messages": [{"role": "user", "content": [_PICTURE]}]},
        {**_BODY, "messages": [*_BODY["messages"], {"role": "user", "content": [_PICTURE]}]},
    ]

    check = _checked([line(f"{number}", body=body) for number, body in enumerate(bodies)])

    first, second = [one.message for one in check.refusals]
    assert first == (
        "Requests that get an error for 'guided_json': 2. The first is in line 2: "
        "The engine ignores this former name. Use 'structured_outputs.json'."
    )
    # Two places in their lists, and one field.
    assert second.startswith("Requests that get an error for 'messages': 2. The first is in line 4")


def test_lines_that_are_no_requests_are_told_where_they_do_not_fail_the_batch() -> None:
    lines = [line("a", body=_BODY), b"{", line("b", body=_BODY), b"[]"]

    assert _checked(lines).refusals == []
    [found] = _checked(lines, is_strict=False).refusals
    assert found.message.startswith("Requests that get an error for `invalid_json_line`: 2. ")


def test_half_a_character_is_told_before_the_engine_refuses_it() -> None:
    check = _checked(
        [line("a", body={**_BODY, "messages": [{"role": "user", "content": "\ud83d"}]})]
    )

    [found] = check.refusals
    assert "half of a surrogate pair" in found.message
    assert check.problems == []


def test_more_fields_than_twenty_are_left_out() -> None:
    bodies = [{**_BODY, f"field{number}": 1} for number in range(30)]

    check = _checked([line(f"{number}", body=body) for number, body in enumerate(bodies)])

    assert check.refused == 30
    assert len(check.refusals) == 20
