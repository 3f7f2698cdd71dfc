import json
from typing import Any

from shared.validation import InputCheck, Limits, Row

CHAT = "/v1/chat/completions"
LIMITS = Limits()
MODELS = {
    "m": frozenset({CHAT}),
    "other": frozenset({CHAT}),
    "e": frozenset({"/v1/embeddings"}),
}


def line(custom_id: str = "a", **changes: Any) -> bytes:
    request = {
        "custom_id": custom_id,
        "method": "POST",
        "url": CHAT,
        "body": {"model": "m", "messages": []},
        **changes,
    }
    return json.dumps({name: value for name, value in request.items() if value != ...}).encode()


def check(*lines: bytes, limits: Limits = LIMITS) -> tuple[InputCheck, list[Row]]:
    found = InputCheck(CHAT, MODELS, limits)
    rows = found.feed(b"".join(text + b"\n" for text in lines))
    return found, rows + found.finish()


def problems(
    *lines: bytes, limits: Limits = LIMITS
) -> list[tuple[str | None, int | None, str | None]]:
    found, _ = check(*lines, limits=limits)
    return [(problem.code, problem.line, problem.param) for problem in found.problems]


def test_good_lines_give_a_model_and_rows_that_cover_all_bytes() -> None:
    lines = [line("a"), line("bb")]

    found, rows = check(*lines)

    end = len(lines[0]) + 1
    assert (2, "m", []) == (found.rows, found.model, found.problems)
    assert [(1, 0, end, lines[0]), (2, end, end + len(lines[1]) + 1, lines[1])] == [
        (row.number, row.start, row.end, row.line) for row in rows
    ]


def test_predicted_tokens_follow_the_requests_own_limits() -> None:
    body = {"model": "m", "messages": [], "max_completion_tokens": 1000, "n": 3}

    _, [row] = check(line(body=body))

    assert (1000, 3000) == (row.limit, row.output)
    assert 3000 <= row.tokens < 3100


def test_a_request_without_a_limit_of_its_own_gets_a_guess() -> None:
    _, [row] = check(line())

    assert row.limit is None
    assert row.output > 0


def test_bad_lines_give_no_rows() -> None:
    _, rows = check(b"{", line("a"), line("b", method="GET"), line("a"), line("c"))

    assert [2, 5] == [row.number for row in rows]


def test_what_is_no_count_is_left_to_the_engine() -> None:
    body: dict[str, Any] = {"model": "m", "messages": [], "n": None, "max_tokens": -1}

    _, [plain, odd] = check(line("a"), line("b", body=body))

    assert (None, plain.output) == (odd.limit, odd.output)


def test_every_bad_line_is_reported_with_its_number() -> None:
    assert [
        ("invalid_json_line", 1, None),
        ("missing_required_parameter", 3, "custom_id"),
        ("invalid_type", 4, "body"),
        ("invalid_method", 5, "method"),
        ("invalid_url", 6, "url"),
        ("streaming_unsupported", 7, "body.stream"),
        ("invalid_request", 8, "body.model"),
        ("invalid_request", 9, "body.messages"),
        ("model_not_found", 10, "body.model"),
        ("mismatched_model", 11, "body.model"),
        ("duplicate_custom_id", 12, "custom_id"),
        ("model_not_found", 13, "body.model"),
        ("missing_required_parameter", 14, "custom_id"),
    ] == problems(
        b"{",
        line("ok"),
        line(custom_id=...),  # type: ignore[arg-type]
        line("c", body=[]),
        line("d", method="GET"),
        line("e", url="/v1/embeddings"),
        line("f", body={"model": "m", "messages": [], "stream": True}),
        line("g", body={"messages": []}),
        line("h", body={"model": "m"}),
        line("i", body={"model": "nobody", "messages": []}),
        line("j", body={"model": "other", "messages": []}),
        line("ok"),
        line("k", body={"model": "e", "messages": []}),
        line(""),
    )


def test_an_input_without_requests_is_empty() -> None:
    assert [("empty_file", None, None)] == problems() == problems(b"", b"  ")


def test_a_byte_order_mark_blank_lines_and_a_missing_last_newline_are_tolerated() -> None:
    found = InputCheck(CHAT, MODELS)
    data = b"\xef\xbb\xbf" + line("a") + b"\r\n\n" + line("b")

    rows = [*found.feed(data), *found.finish()]

    assert (2, []) == (found.rows, found.problems)
    assert rows[-1].end == len(data)


def test_more_rows_than_allowed_are_one_problem() -> None:
    lines = [line(str(number)) for number in range(5)]

    assert [("too_many_tasks", None, None)] == problems(*lines, limits=Limits(rows=2))


def test_only_the_first_problems_are_listed_and_the_rest_counted() -> None:
    found, _ = check(*[b"{"] * 10, limits=Limits(problems=3))

    assert [1, 2, 3, None] == [problem.line for problem in found.problems]
    assert "7 more" in found.problems[-1].message


def test_a_line_that_is_too_long_is_refused_without_being_kept() -> None:
    found = InputCheck(CHAT, MODELS, Limits(line_bytes=1000))

    for _ in range(100):
        assert not found.feed(b"x" * 500)
    found.feed(b"\n" + line("a") + b"\n")
    found.finish()

    assert [("invalid_request", 1)] == [(p.code, p.line) for p in found.problems]
    assert found.rows == 1


def test_line_separators_inside_strings_do_not_split_a_line() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "a\u2028b\u0085c"}]}
    text = json.dumps(
        {"custom_id": "a", "method": "POST", "url": CHAT, "body": body},
        ensure_ascii=False,
    )

    found, _ = check(text.encode())

    assert (1, []) == (found.rows, found.problems)


def test_a_file_of_duplicates_reports_each_once() -> None:
    found, rows = check(*[line("a")] * 300)

    assert [*range(2, 301)] == [problem.line for problem in found.problems]
    assert (300, 1) == (found.rows, len(rows))


def test_bytes_that_are_no_text_are_refused_wherever_they_stand() -> None:
    bad = line("b").replace(b"[]", b'"\xc0"')

    assert [("invalid_json_line", 2, None)] == problems(line("a"), bad, line("c"))


def test_an_embedding_has_no_output() -> None:
    url = "/v1/embeddings"
    lines = [line(name, url=url, body={"model": "e", "input": "x"}) for name in ("a", "b")]
    found = InputCheck(url, MODELS)

    rows = [*found.feed(b"\n".join(lines)), *found.finish()]

    assert [0, 0] == [row.output for row in rows]


def test_a_nest_a_million_deep_is_a_bad_line() -> None:
    deep = b"[" * 1_000_000

    whole, _ = check(line("a"), deep, line("b", body={"model": "m", "messages": [], "x": 1}))
    inside, _ = check(line("a"), line("b").replace(b"[]", deep))

    assert [("invalid_json_line", 2)] == [(p.code, p.line) for p in whole.problems]
    assert [("invalid_json_line", 2)] == [(p.code, p.line) for p in inside.problems]
