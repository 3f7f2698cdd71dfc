from itertools import product
from pathlib import Path

import pytest

from shared.lifecycle import FINAL, INITIAL, TRANSITIONS, Event, Status, document

_ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("event", Event)
def test_every_event_has_a_row(event: Event) -> None:
    assert TRANSITIONS[event].sources


def test_the_final_statuses_are_those_of_openai() -> None:
    assert {"failed", "completed", "expired", "cancelled"} == FINAL


@pytest.mark.parametrize(("event", "status"), [*product(Event, sorted(FINAL))])
def test_nothing_happens_to_a_batch_that_has_ended(event: Event, status: Status) -> None:
    assert status not in TRANSITIONS[event].sources


@pytest.mark.parametrize("event", Event)
def test_no_event_leads_back_to_where_it_came_from(event: Event) -> None:
    assert TRANSITIONS[event].target not in TRANSITIONS[event].sources


def test_no_event_leads_back_to_the_beginning() -> None:
    assert INITIAL not in {row.target for row in TRANSITIONS.values()}


def test_every_status_can_be_reached() -> None:
    assert _reachable(INITIAL) == set(Status)


@pytest.mark.parametrize("status", Status)
def test_no_status_is_a_trap(status: Status) -> None:
    assert _reachable(status) & FINAL


def test_the_page_in_the_docs_is_the_table() -> None:
    assert (_ROOT / "docs/lifecycle.md").read_text() == document()


def test_the_page_names_every_event_and_every_status() -> None:
    page = document()

    assert all(f"`{event}`" in page for event in Event)
    assert all(f"`{status}`" in page for status in Status)


def _reachable(start: Status) -> set[Status]:
    found, fresh = {start}, {start}
    while fresh:
        fresh = {row.target for row in TRANSITIONS.values() if row.sources & fresh} - found
        found |= fresh
    return found
