import json

from hypothesis import given
from hypothesis import strategies as st

from shared.slices import Part, Slice
from worker.kept_rows import NOTHING, kept_rows
from worker.rows import PartBody, assemble

BATCH = "batch_" + "ab" * 16
#: Every other row of a stretch, as if another lane had the rest.
SLICE = Slice(0, 100, 7, 6, 10, lane=1, mask=f"{0b10101010101:x}")
LINES = [json.dumps({"custom_id": f"row-{position}"}).encode() for position in range(6)]


def _result(position: int, *, is_refused: bool) -> tuple[int, bytes]:
    if is_refused:
        return 400, b'{"error":{"message":"no"}}'
    usage = {"prompt_tokens": position, "completion_tokens": 1}
    return 200, json.dumps({"usage": usage}).encode()


def _part(body: PartBody) -> Part:
    return Part("key", "etag", len(body.output), len(body.error), body.rows, body.usage)


@given(
    st.lists(
        st.tuples(st.sampled_from(["first", "second", "never"]), st.booleans()),
        min_size=6,
        max_size=6,
    )
)
def test_what_two_runs_have_answered_is_what_one_run_would_have_given(
    rows: list[tuple[str, bool]],
) -> None:
    results = [_result(position, is_refused=refused) for position, (_, refused) in enumerate(rows)]

    def of(*runs: str) -> list[tuple[int, bytes] | None]:
        return [one if run in runs else None for (run, _), one in zip(rows, results, strict=True)]

    first = assemble(BATCH, SLICE, LINES, of("first"))
    kept = kept_rows(SLICE, _part(first), first.output + first.error)
    both = assemble(BATCH, SLICE, LINES, of("second"), kept)

    assert [position in kept for position in range(6)] == [run == "first" for run, _ in rows]
    assert len(kept) == first.rows
    assert both == assemble(BATCH, SLICE, LINES, of("first", "second"))


def test_a_body_that_is_not_what_was_kept_keeps_nothing() -> None:
    body = assemble(BATCH, SLICE, LINES, [_result(row, is_refused=row == 2) for row in range(6)])
    text, part = body.output + body.error, _part(body)
    elsewhere = Slice(0, 100, 1000, 6, 10)

    assert len(kept_rows(SLICE, part, text)) == 6
    assert kept_rows(SLICE, None, text) is NOTHING
    assert kept_rows(SLICE, part, b"") is NOTHING
    assert kept_rows(SLICE, part, text[:-1]) is NOTHING
    assert kept_rows(SLICE, part, b"x" * len(text)) is NOTHING
    assert kept_rows(SLICE, part._replace(rows=5), text) is NOTHING
    assert kept_rows(elsewhere, part, text) is NOTHING
