import json
from typing import Any

import pytest

from shared.input.rows import Row
from shared.input.validation import InputCheck, Limits
from shared.openai.endpoints import ENDPOINTS
from shared.openai.row_limits import RowLimits
from shared.openai.row_rules import DEFAULT_RULES, RowRules
from shared.openai.shapes import BatchWarning

CHAT = "/v1/chat/completions"
LIMITS = Limits()
BODY: dict[str, Any] = {"model": "m", "messages": []}
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


def test_a_body_that_the_engine_would_refuse_is_a_row_without_output() -> None:
    body: dict[str, Any] = {"model": "m", "messages": [], "n": None, "max_tokens": -1}

    found, [plain, odd, other] = check(line("a"), line("b", body=body), line("c"))

    assert (None, 0) == (odd.limit, odd.output)
    assert odd.refusal == ("max_tokens", "Input should be greater than or equal to 1")
    assert (None, None, 1) == (plain.refusal, other.refusal, found.refused)
    assert ([], 3) == (found.problems, found.rows)


def test_a_limit_that_only_another_endpoint_knows_is_refused() -> None:
    _, [odd] = check(line("a", body={**BODY, "max_output_tokens": 5}))

    assert odd.refusal is not None
    assert odd.refusal.param == "max_output_tokens"


def test_answers_and_limits_are_read_as_the_engine_reads_them() -> None:
    body = {**BODY, "n": "3", "max_completion_tokens": 100.0, "max_tokens": 7}

    _, [row] = check(line("a", body=body))

    assert (100, 3, 300) == (row.limit, row.sequences, row.output)


def test_no_request_is_predicted_to_take_more_tokens_than_redis_can_add_up() -> None:
    largest = 2**31 - 1

    rules = {"m": RowRules(limits=RowLimits(sequences=largest))}
    body = {**BODY, "n": largest, "max_tokens": largest}

    [row] = InputCheck(CHAT, MODELS, rules=rules).feed(line("a", body=body) + b"\n")

    assert (row.limit, row.sequences, row.output) == (largest, largest, 2**31)


COMPLETIONS = "/v1/completions"


def completions(*bodies: dict[str, Any], rules: RowRules = DEFAULT_RULES) -> list[Row]:
    found = InputCheck(COMPLETIONS, {"m": frozenset({COMPLETIONS})}, rules={"m": rules})
    lines = [
        line(str(number), url=COMPLETIONS, body={"model": "m", **body})
        for number, body in enumerate(bodies)
    ]
    return found.feed(b"".join(text + b"\n" for text in lines))


def test_a_prediction_counts_all_prompts_and_all_answers_to_each() -> None:
    prompts = ["x"] * 100

    first, plain, several = completions(
        {"prompt": "x"},
        {"prompt": prompts, "max_tokens": 1000},
        {"prompt": [[1], [2]], "n": 3, "max_tokens": 1000},
    )

    assert (1, 16) == (first.sequences, first.output)
    assert (100, 100_000) == (plain.sequences, plain.output)
    assert (6, 6000) == (several.sequences, several.output)


def test_a_row_of_a_thousand_prompts_and_sixteen_answers_to_each_is_refused() -> None:
    row = completions({"prompt": ["x"] * 1024, "n": 16, "max_tokens": 1000})[0]

    assert row.refusal is not None
    assert (row.refusal.param, row.output) == ("prompt", 0)


def test_a_prediction_counts_the_fewest_tokens_that_an_answer_may_have() -> None:
    body = {**BODY, "min_tokens": 3000}

    _, [row] = check(line(body=body))

    assert (None, 3000) == (row.limit, row.output)


def test_an_answer_that_ends_only_with_its_limit_is_predicted_to_reach_it() -> None:
    rules = {"m": RowRules(context=4096)}

    unending = {**BODY, "ignore_eos": True}

    found = InputCheck(CHAT, MODELS, rules=rules)
    # Lines that come with the first one are never plain.
    [first] = found.feed(line("a", body=unending) + b"\n")
    [later] = found.feed(line("b", body=unending) + b"\n")

    assert first.output == later.output == 4096


@pytest.mark.parametrize("changes", [{}, {"min_tokens": 1}])
def test_no_answer_is_predicted_to_exceed_the_context(changes: dict[str, Any]) -> None:
    """Of a plain line and of any other; the engine shortens the answer as well."""
    rules = RowRules(context=4096)

    *_, row = completions(
        {"prompt": "x"}, {"prompt": "x", "max_tokens": 2_000_000, **changes}, rules=rules
    )

    assert (row.limit, row.output) == (2_000_000, 4096)


@pytest.mark.parametrize("prompt", ["a", ["a"] * 20])
def test_a_limit_of_a_model_holds_for_plain_lines_too(prompt: Any) -> None:
    schema = {"name": "s", "schema": {"type": "object", "enum": ["x" * 200]}}
    form = {"response_format": {"type": "json_schema", "json_schema": schema}}
    limits = RowLimits(sequences=2, stop=1, schema_bytes=100)
    bodies: list[dict[str, Any]] = [
        {"prompt": ["a", "b", "c"]},
        {"prompt": "a", "stop": ["a", "b"]},
        {"prompt": "a", **form},
    ]

    for body in bodies:
        *_, row = completions({"prompt": "a"}, body, rules=RowRules(limits=limits))
        assert row.refusal is not None, body
    assert completions({"prompt": prompt}, bodies[1])[1].refusal is None


def test_a_body_with_other_rules_is_left_to_the_engine() -> None:
    body = {**BODY, "use_beam_search": True, "temperature": 9, "n": 2, "max_tokens": 10}
    rules = {"m": RowRules(extra_fields=frozenset({"use_beam_search"}))}

    [row] = InputCheck(CHAT, MODELS, rules=rules).feed(line("a", body=body) + b"\n")

    assert (None, 10, 20) == (row.refusal, row.limit, row.output)


def test_a_field_that_is_closed_is_refused_by_its_name_and_the_other_rows_run() -> None:
    closed = {**BODY, "kv_transfer_params": {"prompt_token_ids": [1]}, "max_tokens": 10}

    found, [plain, odd, other] = check(line("a"), line("b", body=closed), line("c"))

    assert odd.refusal is not None
    assert ("kv_transfer_params", 0) == (odd.refusal.param, odd.output)
    assert (None, None, 1) == (plain.refusal, other.refusal, found.refused)
    assert ([], 3) == (found.problems, found.rows)


def test_media_to_download_are_refused_with_their_row_and_field() -> None:
    part = {"type": "image_url", "image_url": {"url": "http://127.0.0.1/x"}}
    body = {**BODY, "messages": [{"role": "user", "content": [part]}]}

    _, [plain, row] = check(line("a"), line("b", body=body))

    assert row.refusal is not None
    assert (2, "messages.0.content.0.image_url") == (row.number, row.refusal.param)
    assert plain.refusal is None


def test_a_field_is_open_for_the_model_that_its_operator_opened_it_for() -> None:
    rules = {"m": RowRules(extra_fields=frozenset({"vllm_xargs"}))}
    found = InputCheck(CHAT, MODELS, rules=rules, is_mixed=True)
    lines = [
        line(name, body={**BODY, "model": name, "vllm_xargs": {"a": 1}}) for name in ("m", "other")
    ]

    opened, closed = found.feed(b"\n".join([*lines, b""]))

    assert (None, "vllm_xargs") == (opened.refusal, closed.refusal and closed.refusal.param)


def test_every_bad_line_is_reported_with_its_number() -> None:
    assert [
        ("invalid_json_line", 1, None),
        ("missing_required_parameter", 3, "custom_id"),
        ("invalid_type", 4, "body"),
        ("invalid_method", 5, "method"),
        ("invalid_url", 6, "url"),
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
        b"",
        line("g", body={"messages": []}),
        line("h", body={"model": "m"}),
        line("i", body={"model": "nobody", "messages": []}),
        line("j", body={"model": "other", "messages": []}),
        line("ok"),
        line("k", body={"model": "e", "messages": []}),
        line(""),
    )


@pytest.mark.parametrize(
    ("url", "body", "param"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "cut \ud83d"}]}, "messages.0.content"),
        (CHAT, {"messages": [], "user": "\udc00"}, None),
        (CHAT, {"messages": [], "stream": "no"}, None),
        (CHAT, {"messages": [], "stream": True}, "stream"),
        (CHAT, {"messages": [], "stream": "perhaps"}, "stream"),
        ("/v1/completions", {"prompt_embeds": "x"}, "prompt_embeds"),
        ("/v1/embeddings", {"messages": [{"role": "user", "content": "x"}]}, None),
        ("/v1/embeddings", {"input": "x", "stream": True}, None),
        ("/score", {"queries": "x"}, "queries"),
        ("/rerank", {"documents": ["x"]}, "query"),
        ("/v1/messages", {"messages": []}, "max_tokens"),
        ("/classify", {}, "input"),
    ],
)
def test_what_openai_leaves_open_fails_a_row_and_not_the_batch(
    url: str, body: dict[str, Any], param: str | None
) -> None:
    found = InputCheck(url, {"m": frozenset(ENDPOINTS)})

    rows = found.feed(line("a", url=url, body={"model": "m", **body}) + b"\n")

    assert found.problems == []
    [row] = rows
    assert (row.refusal and row.refusal.param) == param


def test_a_custom_id_that_no_file_can_hold_fails_the_batch() -> None:
    assert problems(line("\ud800")) == [("invalid_json_line", 1, None)]


def test_what_the_engine_reads_many_times_is_predicted_as_often() -> None:
    query, documents = "q" * 4000, ["d" * 40] * 100
    body = {"model": "m", "query": query, "documents": documents}
    found = InputCheck("/rerank", {"m": frozenset(ENDPOINTS)})

    [row] = found.feed(line("a", url="/rerank", body=body) + b"\n")

    assert row.sequences == 100
    assert 100_000 <= row.tokens <= 105_000


@pytest.mark.parametrize(
    ("value", "inputs"),
    [
        ("one text", 1),
        ([], 1),
        (["a", "b", "c"], 3),
        ([1, 2, 3], 1),
        ([[1, 2], [3]], 2),
        (5, 1),
    ],
)
def test_the_inputs_of_all_embeddings_are_counted(value: Any, inputs: int) -> None:
    embed = [line(name, url="/v1/embeddings", body={"model": "e", "input": value}) for name in "ab"]

    found = InputCheck("/v1/embeddings", MODELS)
    # In two ways: those that come after the first are looked at together.
    for text in embed:
        found.feed(text + b"\n")
    found.finish()

    assert (found.problems, found.embedding_inputs) == ([], 2 * inputs)


def test_more_inputs_of_embeddings_than_allowed_are_one_problem() -> None:
    embed = [
        line(name, url="/v1/embeddings", body={"model": "e", "input": ["x", "y"]})
        for name in ("a", "b")
    ]

    for max_inputs, codes in ((4, []), (3, ["too_many_inputs"])):
        found = InputCheck("/v1/embeddings", MODELS, Limits(embedding_inputs=max_inputs))
        found.feed(b"\n".join(embed))
        found.finish()

        assert [problem.code for problem in found.problems] == codes


def test_prompt_tokens_are_predicted_apart_from_the_outputs() -> None:
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x" * 4000}]}
    body["max_tokens"] = 500

    found = InputCheck(CHAT, MODELS)
    rows = [row for name in "ab" for row in found.feed(line(name, body=body) + b"\n")]

    assert 2000 <= found.prompt_tokens < 2200
    assert sum(row.tokens for row in rows) == found.prompt_tokens + 1000


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
    body: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": "a\u2028b\u0085c"}],
    }
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


def mixed(*lines: bytes, limits: Limits = LIMITS) -> tuple[InputCheck, list[Row]]:
    found = InputCheck(CHAT, MODELS, limits, is_mixed=True)
    rows = found.feed(b"".join(text + b"\n" for text in lines))
    return found, rows + found.finish()


def embedding(custom_id: str, *texts: str) -> bytes:
    return line(custom_id, url="/v1/embeddings", body={"model": "e", "input": texts})


def test_where_lines_may_differ_each_row_says_where_it_goes() -> None:
    found, rows = mixed(
        line("a"),
        embedding("b", "x", "y"),
        line("c", body={"model": "other", "messages": [], "max_tokens": 7}),
        line("d"),
    )

    assert [] == found.problems
    assert [(row.url, row.model, row.output) for row in rows] == [
        (CHAT, "m", 256),
        ("/v1/embeddings", "e", 0),
        (CHAT, "other", 7),
        (CHAT, "m", 256),
    ]
    assert (found.model, found.embedding_inputs) == (None, 2)


def test_one_model_where_they_may_differ_is_the_batchs_model() -> None:
    found, rows = mixed(*(line(str(number)) for number in range(200)))

    assert (found.model, {row.model for row in rows}, len(rows)) == ("m", {"m"}, 200)


def test_runs_of_lines_of_one_model_are_checked_together_as_alone() -> None:
    # Longer than what is looked at together, so that both ways of looking are taken.
    lines = [
        *(line(f"m{number}") for number in range(150)),
        *(embedding(f"e{number}", "x") for number in range(150)),
        line("m1"),
    ]

    found, rows = mixed(*lines)

    assert [row.line for row in rows] == lines[:-1]
    assert [row.model for row in rows] == ["m"] * 150 + ["e"] * 150
    assert [(one.code, one.line) for one in found.problems] == [("duplicate_custom_id", 301)]
    assert found.embedding_inputs == 150


def test_what_no_line_may_name_is_reported() -> None:
    found, rows = mixed(
        line("a", url="/v1/audio"),
        line("b", body={"model": "e", "messages": []}),
        line("c", url="/v1/embeddings", body={"model": "e", "prompt": "x"}),
        line("d", body={"model": "nobody", "messages": []}),
    )

    assert [] == rows
    assert [(one.code, one.line, one.param) for one in found.problems] == [
        ("invalid_url", 1, "url"),
        ("model_not_found", 2, "body.model"),
        ("invalid_request", 3, "body.input"),
        ("model_not_found", 4, "body.model"),
    ]


def test_what_is_told_of_a_name_with_half_of_a_surrogate_pair_can_be_sent() -> None:
    torn = "\ud83d"
    wrong = line("a", body={**BODY, torn: 1}) + b"\n"
    double = json.dumps({"custom_id": torn, "method": "GET", "url": CHAT, "body": BODY}).encode()

    [row] = (refused := InputCheck(CHAT, MODELS)).feed(wrong)
    (failing := InputCheck(CHAT, MODELS)).feed(double + b"\n" + double + b"\n")
    told = [*refused.refusals, *failing.problems]

    assert row.refusal is not None
    assert len(told) >= 3
    assert [one.model_dump_json() for one in told]


def test_a_warning_that_was_kept_before_can_be_sent() -> None:
    kept = BatchWarning(code="ignored_field", message="No effect: '\ud83d'")

    assert json.loads(kept.model_dump_json())["message"] == "No effect: '?'"
