import json

from hypothesis import given
from hypothesis import strategies as st

from shared.ledger.reasons import LEFT_OUT, shortened


def test_few_reasons_stay_as_they_are() -> None:
    fields = {"errors": '[{"code": "x"}]', "first_error": "x"}

    assert shortened(fields) == fields
    assert shortened({"completed": 3}) == {"completed": 3}


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=9))
def test_the_first_reasons_are_kept_within_a_bound_and_the_others_are_counted(
    lengths: list[int],
) -> None:
    messages = ["x" * length for length in lengths]
    reasons = [{"code": "invalid", "line": 1, "message": message} for message in messages]

    fields = shortened({"errors": json.dumps(reasons), "first_error": messages[0]})

    kept = json.loads(str(fields["errors"]))
    assert kept == reasons[: len(kept)]
    assert len(kept) + int(fields.get(LEFT_OUT, 0)) == len(reasons)
    assert len(kept) == 1 or len(str(fields["errors"]).encode()) <= 4096 + 2 * len(kept)
    assert fields["first_error"] == messages[0]
