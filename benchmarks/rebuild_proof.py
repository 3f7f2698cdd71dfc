"""The state of every batch before Redis was lost, and the differences after the rebuild."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shared.lifecycle import FINAL, Status
from shared.state import State

#: Fields that a rebuild does not restore: momentary ones, and numbers that continue higher.
_PASSING = {"sequence", "progress_ms", "plan"}
_TOGETHER = 500

#: Published events by batch and number: the type, the time and the snapshot.
Published = dict[tuple[str, int], tuple[str, str, Any]]


@dataclass(frozen=True)
class Proof:
    """Everything that a rebuild has to restore."""

    records: Mapping[str, Mapping[str, str]]
    #: The parts of running batches by slice, each with the epoch of its claim.
    parts: Mapping[str, Mapping[int, tuple[object, int]]]

    @property
    def ended(self) -> set[str]:
        return {one for one, fields in self.records.items() if Status(fields["status"]) in FINAL}

    @property
    def running(self) -> set[str]:
        return set(self.records) - self.ended


async def take(state: State, batch_ids: Sequence[str]) -> Proof:
    """The current state of the batches; missing ones are left out."""
    records: dict[str, Mapping[str, str]] = {}
    for first in range(0, len(batch_ids), _TOGETHER):
        for record in await state.batches.many(list(batch_ids[first : first + _TOGETHER])):
            records[record.id] = {k: v for k, v in record.fields.items() if k not in _PASSING}
    proof = Proof(records, {})
    parts = {}
    for batch_id in sorted(proof.running):
        epochs = await state.slices.epochs(batch_id)
        found = await state.slices.parts(batch_id)
        parts[batch_id] = {index: (part, epochs[index]) for index, part in found.items()}
    return Proof(records, parts)


async def take_events(state: State) -> Published:
    """Take the events that wait in the outbox."""
    events: Published = {}
    while entries := await state.outbox.read("events", limit=_TOGETHER, wait_seconds=0.001):
        for entry in entries:
            snapshot = entry.snapshot()
            event = entry.fields["type"], entry.fields["at_ms"], snapshot
            events[snapshot["id"], int(entry.fields["sequence"])] = event
        await state.outbox.remove("events", [entry.id for entry in entries])
    return events


async def differences(
    state: State, before: Proof, events: Published, *, unknown: set[str], lane: str
) -> list[str]:
    """Each broken promise as text; `unknown` are batches whose end Redis did not know."""
    after, again = await take(state, list(before.records)), await take_events(state)
    active = set(await state.lanes.active(lane, limit=len(before.records)))
    broken = list(_of_records(before, after))
    broken += [f"{one} has ended, but is scheduled to run" for one in sorted(before.ended & active)]
    broken += [
        f"{one} runs, but its lane does not know it" for one in sorted(before.running - active)
    ]
    highest: dict[str, int] = {}
    for batch_id, number in events:
        highest[batch_id] = max(number, highest.get(batch_id, 0))
    for (batch_id, number), said in again.items():
        first = events.get((batch_id, number))
        if first is None and number <= highest.get(batch_id, 0):
            broken.append(f"event {number} of {batch_id} has a number that another event may have")
        elif first not in (None, said):
            broken.append(f"event {number} of {batch_id} differs from the first one")
    ends = {
        batch_id
        for (batch_id, number), (kind, _, _) in again.items()
        if kind.removeprefix("batch.") in FINAL and (batch_id, number) in events
    }
    broken += [
        f"the end of {batch_id} is not published again" for batch_id in sorted(unknown - ends)
    ]
    return broken


def _of_records(before: Proof, after: Proof) -> Iterator[str]:
    for batch_id, fields in before.records.items():
        found = after.records.get(batch_id)
        if found is None:
            yield f"{batch_id} is lost"
        elif found != fields:
            changed = dict(found.items() ^ fields.items())
            yield f"{batch_id} has different values of {sorted(changed)}"
    for batch_id, parts in before.parts.items():
        if after.parts.get(batch_id) != parts:
            yield f"{batch_id} has different parts or claims"


def renamed(text: str, names: Mapping[str, str]) -> str:
    """The text of a copy, with these names replaced."""
    for old, new in names.items():
        text = text.replace(old, new)
    return text
