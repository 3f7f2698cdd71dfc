import json

from shared.slices import Claim, Part, Slice, Stop, StrikeRange
from worker.rows import PartBody
from worker.slice_run import SliceRun

_LINES = b"\n".join(json.dumps({"custom_id": f"row-{row}"}).encode() for row in range(5))
_ANSWER = (200, b"{}")


def _run(kept: PartBody | None = None) -> SliceRun:
    part = kept and Part("k", "e", len(kept.output), len(kept.error), kept.rows, kept.usage)
    claim = Claim(
        lane="m@gpu",
        batch_id="batch_" + "ab" * 16,
        index=3,
        epoch=1,
        strikes=0,
        slice=Slice(0, 100, 10, 5, 10),
        bucket="b",
        key="k",
        etag="e",
        endpoint="/v1/chat/completions",
        tenant="acme",
        kept=part,
    )
    return SliceRun(claim, _LINES, kept.output + kept.error if kept else b"")


def _names(body: PartBody) -> list[str]:
    return [json.loads(line)["custom_id"] for line in (body.output + body.error).splitlines()]


def test_of_five_rows_of_which_three_are_done_two_are_run_again() -> None:
    first = _run()
    for row in (0, 2, 3):
        first.answer(row, _ANSWER)

    second = _run(first.body())

    assert second.chunks(16) == [[1, 4]]
    for row in (1, 4):
        second.answer(row, (400, b"{}") if row == 1 else _ANSWER)
    assert second.is_done
    assert _names(second.body()) == ["row-0", "row-2", "row-3", "row-4", "row-1"]
    assert second.body().usage[:2] == (4, 1)


def test_rows_that_are_all_kept_are_not_run_at_all() -> None:
    first = _run()
    for row in range(5):
        first.answer(row, _ANSWER)

    second = _run(first.body())

    assert second.is_done
    assert second.chunks(16) == []
    assert second.body() == first.body()


def test_rows_run_in_groups_and_count_as_in_the_engine_until_they_are_answered() -> None:
    run = _run()
    first, second, third = run.chunks(2)

    run.enter(first)
    run.enter(second)
    run.answer(second[0], _ANSWER)

    assert [list(chunk) for chunk in (first, second, third)] == [[0, 1], [2, 3], [4]]
    assert run.rows_in_engine == 3
    assert [run.in_engine(chunk) for chunk in (first, second, third)] == [True, True, False]
    run.leave(first)
    assert run.rows_in_engine == 1


def test_a_row_that_was_answered_before_the_engine_died_gets_no_strike() -> None:
    run = _run()
    run.answer(1, _ANSWER)

    run.strike([0, 1, 2])

    assert run.strike_ranges() == (StrikeRange(0, 1, 1), StrikeRange(2, 3, 1))


def test_a_paused_run_is_paused_only_while_rows_are_left() -> None:
    run = _run()
    run.stop = Stop.PAUSED

    assert run.is_paused
    for row in range(5):
        run.answer(row, _ANSWER)
    assert not run.is_paused
