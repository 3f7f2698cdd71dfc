from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cli.client.event_stream import Event, events

_STREAM = (
    b'event: batch.accepted\nid: 1\ndata: {"status":"validating"}\n\n'
    b": ping\n\n"
    b'event: batch.completed\r\nid: 2\r\ndata: {"status":"completed"}\r\n\r\n'
)
_EVENTS = [Event("1", {"status": "validating"}), None, Event("2", {"status": "completed"})]


@given(st.lists(st.integers(0, len(_STREAM)), max_size=8))
def test_events_are_the_same_however_their_bytes_come(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(_STREAM)]
    chunks = [_STREAM[start:end] for start, end in pairwise(places)]

    assert list(events(chunks)) == _EVENTS


def test_an_event_that_was_cut_is_none() -> None:
    assert list(events([_STREAM[:40]])) == []
