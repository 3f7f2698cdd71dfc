import json

from hypothesis import given
from hypothesis import strategies as st

from shared import ids
from shared.slices import Slice, SliceUsage
from worker.rows import assemble

BATCH = "batch_" + "ab" * 16
SLICE = Slice(0, 100, 7, 3, 10)


def line(custom_id: str) -> bytes:
    return json.dumps({"custom_id": custom_id, "body": {}}).encode()


def body(prompt: int = 3, completion: int = 2) -> bytes:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    return json.dumps({"object": "chat.completion", "usage": usage}).encode()


def test_results_and_errors_are_apart_each_in_input_order() -> None:
    lines = [line("a"), line("b"), line("c")]
    error = b'{"error":{"message":"no","type":"t","param":null,"code":null}}'

    part = assemble(BATCH, SLICE, lines, [(200, body()), (400, error), (200, body())])

    output = [json.loads(text) for text in part.output.split(b"\n") if text]
    errors = [json.loads(text) for text in part.error.split(b"\n") if text]
    assert ["a", "c"] == [result["custom_id"] for result in output]
    assert ["b"] == [result["custom_id"] for result in errors]
    assert errors[0]["response"]["body"]["error"]["message"] == "no"
    assert errors[0]["error"] is None
    assert SliceUsage(completed=2, failed=1, input_tokens=6, output_tokens=4) == part.usage


def test_a_result_line_has_openais_shape_and_says_its_row() -> None:
    part = assemble(BATCH, SLICE, [line("a")], [(200, body())])

    result = json.loads(part.output)
    assert {"id", "custom_id", "response", "error"} == set(result)
    assert {"status_code", "request_id", "body"} == set(result["response"])
    assert len(result["response"]["request_id"]) == 32
    assert ids.row_of_result(part.output) == SLICE.first_row


def test_rows_that_did_not_run_are_left_out() -> None:
    part = assemble(BATCH, SLICE, [line("a"), line("b")], [None, (200, body())])

    assert part.rows == 1
    assert ids.row_of_result(part.output) == SLICE.first_row + 1


def test_a_slice_among_others_names_its_own_rows() -> None:
    slice_ = Slice(0, 100, 7, 2, 10, 1, "a")

    part = assemble(BATCH, slice_, [line("b"), line("d")], [(200, b"{}"), (200, b"{}")])

    assert [8, 10] == [ids.row_of_result(text) for text in part.output.splitlines()]


def test_details_of_usage_are_counted() -> None:
    usage = {
        "prompt_tokens": 5,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }

    part = assemble(BATCH, SLICE, [line("a")], [(200, json.dumps({"usage": usage}).encode())])

    assert SliceUsage(1, 0, 5, 3, 4, 2) == part.usage


def test_what_anthropics_form_counts_apart_is_counted_with_the_input() -> None:
    usage = {"input_tokens": 5, "output_tokens": 4, "cache_read_input_tokens": 3}

    part = assemble(BATCH, SLICE, [line("a")], [(200, json.dumps({"usage": usage}).encode())])

    assert SliceUsage(1, 0, 8, 3, 4, 0) == part.usage


@given(st.text())
def test_result_lines_are_ascii_and_one_line_for_any_custom_id(custom_id: str) -> None:
    part = assemble(BATCH, SLICE, [json.dumps({"custom_id": custom_id}).encode()], [(200, b"{}")])

    assert part.output.isascii()
    assert part.output.decode().splitlines() == [part.output.decode().rstrip("\n")]
    assert json.loads(part.output)["custom_id"] == custom_id
