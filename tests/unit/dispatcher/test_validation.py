import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.slicing import SliceLimits, Slicer
from dispatcher.validation import InputCheck, Limits
from shared.slices import Slice

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


def check(
    *lines: bytes, limits: Limits = LIMITS, chunk: int = 10**9
) -> tuple[InputCheck, list[Slice]]:
    found = InputCheck(CHAT, MODELS, Slicer(SliceLimits()), limits)
    data = b"".join(text + b"\n" for text in lines)
    slices: list[Slice] = []
    for start in range(0, len(data), chunk):
        slices += found.feed(data[start : start + chunk])
    slices += found.finish()
    return found, slices


def problems(
    *lines: bytes, limits: Limits = LIMITS
) -> list[tuple[str | None, int | None, str | None]]:
    found, _ = check(*lines, limits=limits)
    return [(problem.code, problem.line, problem.param) for problem in found.problems]


def test_good_lines_give_rows_a_model_and_slices_over_all_bytes() -> None:
    lines = [line("a"), line("b")]

    found, slices = check(*lines)

    assert (2, "m", []) == (found.rows, found.model, found.problems)
    assert [(0, sum(len(text) + 1 for text in lines), 0, 2)] == [piece[:4] for piece in slices]


def test_predicted_tokens_follow_the_requests_own_limits() -> None:
    body = {"model": "m", "messages": [], "max_completion_tokens": 1000, "n": 3}

    _, slices = check(line(body=body))

    assert 3000 <= slices[0].tokens < 3100


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

    found = InputCheck("/v1/embeddings", MODELS, Slicer(SliceLimits()))
    list(found.feed(b"\n".join(embed)))
    list(found.finish())

    assert (found.problems, found.embedding_inputs) == ([], 2 * inputs)


def test_more_inputs_of_embeddings_than_allowed_are_one_problem() -> None:
    embed = [
        line(name, url="/v1/embeddings", body={"model": "e", "input": ["x", "y"]})
        for name in ("a", "b")
    ]

    for most, codes in ((4, []), (3, ["too_many_inputs"])):
        found = InputCheck(
            "/v1/embeddings", MODELS, Slicer(SliceLimits()), Limits(embedding_inputs=most)
        )
        list(found.feed(b"\n".join(embed)))
        list(found.finish())

        assert [problem.code for problem in found.problems] == codes


def test_prompt_tokens_are_predicted_apart_from_the_outputs() -> None:
    body = {"model": "m", "messages": ["x" * 4000], "max_tokens": 500}

    found, slices = check(line("a", body=body), line("b", body=body))

    assert 2000 <= found.prompt_tokens < 2200
    assert sum(piece.tokens for piece in slices) == found.prompt_tokens + 1000


def test_an_input_without_requests_is_empty() -> None:
    assert [("empty_file", None, None)] == problems() == problems(b"", b"  ")


def test_a_byte_order_mark_blank_lines_and_a_missing_last_newline_are_tolerated() -> None:
    found = InputCheck(CHAT, MODELS, Slicer(SliceLimits()))
    data = b"\xef\xbb\xbf" + line("a") + b"\r\n\n" + line("b")

    slices = [*found.feed(data), *found.finish()]

    assert (2, []) == (found.rows, found.problems)
    assert slices[-1].end == len(data)


def test_more_rows_than_allowed_are_one_problem() -> None:
    lines = [line(str(number)) for number in range(5)]

    assert [("too_many_tasks", None, None)] == problems(*lines, limits=Limits(rows=2))


def test_only_the_first_problems_are_listed_and_the_rest_counted() -> None:
    found, _ = check(*[b"{"] * 10, limits=Limits(problems=3))

    assert [1, 2, 3, None] == [problem.line for problem in found.problems]
    assert "7 more" in found.problems[-1].message


def test_a_line_that_is_too_long_is_refused_without_being_kept() -> None:
    found = InputCheck(CHAT, MODELS, Slicer(SliceLimits()), Limits(line_bytes=1000))

    for _ in range(100):
        assert not list(found.feed(b"x" * 500))
    list(found.feed(b"\n" + line("a") + b"\n"))
    list(found.finish())

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


@given(st.integers(1, 40))
def test_chunk_borders_change_nothing(chunk: int) -> None:
    lines = [line("a"), b"{", b"", line("b"), line("a")]

    whole, whole_slices = check(*lines)
    cut, cut_slices = check(*lines, chunk=chunk)

    assert whole.problems == cut.problems
    assert whole_slices == cut_slices


@given(st.lists(st.binary(max_size=80), max_size=20))
def test_no_bytes_whatever_raise(lines: list[bytes]) -> None:
    check(*lines)
