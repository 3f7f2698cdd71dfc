"""Bad lines where the operator wants them to be errors of their rows."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.input.bad_lines import problem_of
from shared.input.rows import Row
from shared.input.validation import InputCheck, Limits

CHAT = "/v1/chat/completions"
MODELS = {"m": frozenset({CHAT}), "other": frozenset({CHAT}), "e": frozenset({"/v1/embeddings"})}
LIMITS = Limits(custom_id_characters=20)


def _line(custom_id: Any = "a", **changes: Any) -> bytes:
    request = {
        "custom_id": custom_id,
        "method": "POST",
        "url": CHAT,
        "body": {"model": "m", "messages": []},
        **changes,
    }
    return json.dumps({name: value for name, value in request.items() if value != ...}).encode()


#: Lines that fail a batch, each with the code and the name that its row has instead.
BAD: list[tuple[bytes, str, str | None]] = [
    (b"{", "invalid_json_line", None),
    (b'"\xff"', "invalid_json_line", None),
    (b"[" * 5000, "invalid_json_line", None),
    (_line("\ud800"), "invalid_json_line", None),
    (_line(...), "missing_required_parameter", None),
    (_line(""), "missing_required_parameter", None),
    (_line(5), "invalid_type", None),
    (_line("l" * 21), "string_above_max_length", None),
    (_line("type", body=[]), "invalid_type", "type"),
    (_line("method", method="GET"), "invalid_method", "method"),
    (_line("url", url="/v1/embeddings"), "invalid_url", "url"),
    (_line("none", body={"messages": []}), "invalid_request", "none"),
    (_line("empty", body={"model": "m"}), "invalid_request", "empty"),
    (_line("nobody", body={"model": "nobody", "messages": []}), "model_not_found", "nobody"),
    (_line("half", body={"model": "m\ud800", "messages": []}), "model_not_found", "half"),
    (_line("other", body={"model": "other", "messages": []}), "mismatched_model", "other"),
    (_line("e", body={"model": "e", "messages": []}), "model_not_found", "e"),
]


def _check(*lines: bytes, is_strict: bool = False) -> tuple[InputCheck, list[Row]]:
    check = InputCheck(CHAT, MODELS, LIMITS, is_strict=is_strict)
    rows = check.feed(b"".join(text + b"\n" for text in lines))
    return check, rows + check.finish()


def _named(row: Row) -> tuple[str | None, str | None]:
    problem = problem_of(row)
    assert problem is not None
    assert row.bad_line is not None
    return problem.code, json.loads(row.bad_line)["custom_id"]


def test_each_line_that_would_fail_a_batch_is_a_row_with_its_error() -> None:
    check, rows = _check(_line("good"), *(text for text, _, _ in BAD))

    assert check.problems == []
    assert (check.rows, check.refused, check.model) == (1 + len(BAD), len(BAD), "m")
    assert [_named(row) for row in rows[1:]] == [(code, name) for _, code, name in BAD]
    assert [(row.url, row.model) for row in rows] == [(CHAT, "m")] * len(rows)


def test_all_that_is_wrong_with_a_line_is_one_error() -> None:
    _, [_, row] = _check(_line("good"), _line("b", method="GET", body={"messages": []}))

    problem = problem_of(row)
    assert problem is not None
    assert (problem.code, problem.line, problem.param) == ("invalid_method", 2, "method")
    assert problem.message.endswith("Supported values are: 'POST'. Model parameter is required.")


def test_a_bad_line_does_not_say_which_model_the_others_are_for() -> None:
    bad = _line("a", method="GET", body={"model": "other", "messages": []})

    check, rows = _check(bad, _line("b"), _line("c"))

    assert check.model == "m"
    assert [row.bad_line is None for row in rows] == [False, True, True]


def test_repeats_of_a_name_fail_alone_wherever_they_stand() -> None:
    """Among lines that are looked at together, and alone."""
    names = ["a", "a", *(f"{number}" for number in range(100)), "7"]

    _, rows = _check(*map(_line, names))

    repeats = [row.number for row in rows if row.bad_line is not None]
    assert repeats == [2, len(names)]
    assert _named(rows[-1]) == ("duplicate_custom_id", "7")


def test_an_input_without_a_good_line_fails_with_all_its_problems() -> None:
    lines = [text for text, _, _ in BAD if b"other" not in text]

    strict, _ = _check(*lines, is_strict=True)
    check, rows = _check(*lines)

    assert (rows, check.problem_count) == ([], len(lines))
    assert check.problems == strict.problems


@settings(max_examples=25)
@given(st.lists(st.sampled_from([*(text for text, _, _ in BAD), b"", *[_line("g")] * 9])))
def test_good_rows_are_those_of_the_strict_check_and_every_line_is_one_row(
    lines: list[bytes],
) -> None:
    # Each good line has a name of its own.
    lines = [
        text if text != _line("g") else _line(f"{number}") for number, text in enumerate(lines)
    ]
    # With a strict check, a bad line may say which model all are for.
    lines = [_line("first"), *lines]

    strict, good = _check(*lines, is_strict=True)
    _, rows = _check(*lines)

    assert [row for row in rows if row.bad_line is None] == good
    assert [row.number for row in rows] == [number for number, text in enumerate(lines, 1) if text]
    body = b"".join(text + b"\n" for text in lines)
    assert [body[row.start : row.end].rstrip(b"\n") for row in rows] == [
        text for text in lines if text
    ]
    assert {one.line for one in strict.problems} == {
        row.number for row in rows if row.bad_line is not None
    }
