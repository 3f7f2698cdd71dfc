from hypothesis import given
from hypothesis import strategies as st

from shared.ledger.additions import addition_key, addition_name, number_of
from shared.ledger.kinds import Kind, kind_of
from shared.slices import Copy

BATCH = "batch_0123456789abcdef0123456789abcdef"


@given(st.integers(min_value=0, max_value=99_999_999))
def test_an_addition_is_known_by_its_place(number: int) -> None:
    key = addition_key(BATCH, number)

    assert number_of(key.removeprefix(f"batches/{BATCH}/")) == number
    assert kind_of(key) is Kind.ADDITION
    assert Copy(addition_name(number), 0, 1).is_input


def test_other_copies_are_no_additions() -> None:
    for name in (
        "copies/0123abcd-000001.jsonl",
        "copies/0123abcd-000001-errors.jsonl",
        "plan.json",
    ):
        assert number_of(name) is None


def test_keys_are_in_the_order_of_numbers() -> None:
    keys = [addition_key(BATCH, number) for number in (9, 10, 99, 100, 12_345)]

    assert keys == sorted(keys)
