from cli.rebuild.given_rows import GivenRows
from shared.ledger.additions import Addition
from shared.ledger.plans import Plan
from shared.slices import Slice

EMPTY = Plan(fields={"total": 0}, slices=[], sequence=2, at_ms=1)


def _lines(*names: str) -> bytes:
    return b"".join(b'{"custom_id":"%s"}\n' % name.encode() for name in names)


def _addition(number: int, first_row: int, rows: int) -> Addition:
    slices = [Slice(0, 10, first_row, rows, 7)]
    return Addition(number=number, start=0, size=10, slices=slices, prompt_tokens=3, sequences=rows)


def test_additions_are_summed_in_their_order() -> None:
    given = GivenRows()
    given.take(_addition(0, 0, 2), _lines("a", "b"))
    given.take(_addition(1, 2, 1), _lines("c"))

    assert given.takes_rows
    assert len(given.names) == 3
    assert [one.first_row for one in given.plan(EMPTY).slices] == [0, 2]
    assert dict(given.fields) == {
        "additions": 2,
        "total": 3,
        "size": 20,
        "queued_requests": 3,
        "prompt_tokens": 6,
        "lane_tokens": "14/3",
        "slices_total": 2,
    }


def test_the_last_one_closes() -> None:
    given = GivenRows()
    given.take(Addition(number=0, start=0, is_last=True), b"")

    assert not given.takes_rows
    assert given.fields["closed"] == 1
    assert given.fields["additions"] == 1
