import json
from itertools import groupby

from shared.slices import Claim, Part, Slice, Stop, StrikeRange
from shared.table.asking import asking_text
from worker.rows import PartBody
from worker.slice_run import SliceRun

_LINES = b"\n".join(json.dumps({"custom_id": f"row-{row}"}).encode() for row in range(5))
_ANSWER = (200, b"{}")


def _run(
    kept: PartBody | None = None,
    *,
    lines: bytes = _LINES,
    is_last: bool = False,
    asking: str = "",
) -> SliceRun:
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
        is_last=is_last,
        asking=asking,
    )
    return SliceRun(claim, lines, kept.output + kept.error if kept else b"")


def _chats(*letters: str) -> bytes:
    """A line for each letter, of which its prompt is made."""
    url = "/v1/chat/completions"
    return b"\n".join(
        json.dumps(
            {
                "custom_id": f"row-{row}",
                "url": url,
                "body": {"messages": [{"role": "user", "content": letter * 1000}]},
            }
        ).encode()
        for row, letter in enumerate(letters)
    )


def test_long_rows_are_in_groups_of_a_mebibyte_or_alone() -> None:
    lengths = (400_000, 500_000, 300_000, 2_000_000, 10)
    lines = b"\n".join(b'{"custom_id": "%s"}' % (b"x" * length) for length in lengths)

    chunks = _run(lines=lines).chunks(64)

    assert chunks == [[0, 1], [2], [3], [4]]


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


def test_rows_that_begin_alike_go_to_the_engine_together() -> None:
    letters = "ababa"

    chunks = _run(lines=_chats(*letters)).chunks(2)

    order = [row for chunk in chunks for row in chunk]
    assert sorted(order) == list(range(5))
    assert len(list(groupby(letters[row] for row in order))) == 2


def test_the_last_row_that_a_batchs_last_slice_sends_says_so() -> None:
    lines = _chats(*"ababa")
    first = _run(lines=lines)
    last = first.chunks(1)[-1][0]
    first.answer(last, _ANSWER)

    for run in (_run(lines=lines, is_last=True), _run(first.body(), lines=lines, is_last=True)):
        sent = [row for chunk in run.chunks(16) for row in chunk]
        assert [row for row in range(5) if run.works[row].ends_batch] == sent[-1:]
    assert not any(work.ends_batch for work in first.works)


def test_a_row_that_was_answered_before_the_engine_died_gets_no_strike() -> None:
    run = _run()
    run.enter([0, 1, 2])
    run.answer(1, _ANSWER)

    run.strike([0, 1, 2])

    assert run.strike_ranges() == (StrikeRange(0, 1, 1), StrikeRange(2, 3, 1))


def test_a_row_that_waits_to_be_asked_again_gets_no_strike_and_is_another_attempt() -> None:
    run = _run(asking=asking_text(3, {"type": "array"}))
    run.enter([0, 1])
    run.answer(0, (200, b'{"choices":[{"message":{"content":"no JSON"}}]}'))

    run.strike([0, 1])

    assert run.to_ask_again([0, 1]) == [0]
    assert run.strike_ranges() == (StrikeRange(1, 2, 1),)
    # The engine keeps answers by the attempt, too.
    assert [work.attempt for work in run.works[:2]] == [1, 0]


def test_a_paused_run_is_paused_only_while_rows_are_left() -> None:
    run = _run()
    run.stop = Stop.PAUSED

    assert run.is_paused
    for row in range(5):
        run.answer(row, _ANSWER)
    assert not run.is_paused
