from hypothesis import given
from hypothesis import strategies as st

from shared.tracing.trace_context import batch_span_id, of_batch, usable

_PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
_IDS = st.integers(0, 2**128 - 1).map("batch_{:032x}".format)


@given(_IDS, st.integers(1, 2**128 - 1), st.integers(0, 255))
def test_a_batchs_span_stands_in_the_trace_of_its_submission(
    batch_id: str, trace_id: int, flags: int
) -> None:
    parent = f"00-{trace_id:032x}-b7ad6b7169203331-{flags:02x}"

    own = of_batch(batch_id, parent)

    assert own == f"00-{trace_id:032x}-{batch_span_id(batch_id)}-{flags:02x}"
    assert usable(own, None) == (own, "")


@given(st.sets(_IDS, min_size=2))
def test_batches_have_spans_of_their_own(batches: set[str]) -> None:
    assert len({of_batch(batch_id, _PARENT) for batch_id in batches}) == len(batches)


@given(st.text())
def test_what_is_no_trace_context_gives_none(text: str) -> None:
    assert of_batch("batch_1", text) == ""
    assert usable(text, "a=1") == ("", "")
