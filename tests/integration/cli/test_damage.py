"""Damage to each kind of object in S3: it costs one object, in a rebuild as in a fleet at work.

Each test damages three objects of each kind in three ways, and leaves a fourth one and their
neighbours as they are. A kind without a case fails.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from typer.testing import CliRunner

from cli import servers
from cli.__main__ import app
from cli.client.exit_codes import ExitCode
from dispatcher.finaliser import Finaliser
from dispatcher.forgetting import forget_ended
from dispatcher.leaving import let_leave
from dispatcher.lost_inputs import fail_lost_inputs
from dispatcher.reaper import Reaper
from shared import ids
from shared.catalog_file import load_catalog
from shared.dataset.dataset import PinnedDataset
from shared.errors import BrokenObjectError, NotFoundError
from shared.input_places import InputPlaces
from shared.ledger.additions import addition_key
from shared.ledger.batch_records import record_key
from shared.ledger.changes import save_changes
from shared.ledger.commits import cancel, cancel_key, commit_key, save_lane_failure
from shared.ledger.copies import reserve_copies
from shared.ledger.datasets import write_dataset
from shared.ledger.keys import create_key, key_record_key
from shared.ledger.kinds import Kind, kind_of
from shared.ledger.manifests import manifest_key, to_manifest
from shared.ledger.packs import read_manifest
from shared.ledger.pipelines import (
    Handover,
    Sections,
    create_handover,
    handover_key,
    pipeline_key,
    tokenizer_key,
)
from shared.ledger.plans import plan_key
from shared.ledger.quarantine import QUARANTINE
from shared.ledger.tables import carried_key, table_prefix
from shared.ledger.tenants import change_tenant, tenant_key
from shared.ledger.webhook_endpoints import save_webhook, webhook_key
from shared.lifecycle import FINAL, Event
from shared.state import State
from shared.state.files import deleted_key
from shared.storage import Storage
from shared.submission.accept import accept
from shared.submission.additions import close
from shared.submission.tables import table_fields
from shared.table.output import Output
from tests.integration.cli.yards import TENANT, Yards, empty, pack_up
from tests.integration.dispatcher.conftest import (
    CHAT,
    SMALL_ENGINES,
    BatchYard,
    a_planner,
    good,
    lines,
    shuffled,
)
from tests.servers import S3
from worker.outcomes import Outcome, SliceResult
from worker.rows import nothing
from worker.slice_io import fetch, settle

DAMAGES = ("flipped", "cut", "gone")
WHOLE = "whole"


class Case(NamedTuple):
    """A kind of object, and what each damage to one costs in a rebuild after Redis was lost."""

    #: Makes an object with this name. Returns its key, and its batch if it has one.
    make: Callable[[Yards, str], Awaitable[tuple[str, str]]]
    #: The status of the batch afterwards, by damage. None: there is no such batch.
    statuses: Mapping[str, str | None] = {}
    #: Damages that a rebuild names. It cannot know of what was removed whole and leaves no gap.
    named: tuple[str, ...] = ("flipped", "cut")
    #: Those after which the next rebuild still names the object, since others need the rest of it.
    named_again: tuple[str, ...] = ()
    #: How the batch ends in a fleet at work, whose Redis is well, where it does not complete.
    ends: Mapping[str, str] = {}


async def _api_key(yards: Yards, name: str) -> tuple[str, str]:
    key = await create_key(yards.state, yards.storage, TENANT, name=name)
    return key_record_key(ids.api_key_id(ids.api_key_digest(key))), ""


async def _tenant(yards: Yards, name: str) -> tuple[str, str]:
    tenant = name.lower()
    await change_tenant(yards.state, yards.storage, tenant, {"event_streams": 3})
    return tenant_key(tenant), ""


async def _webhook(yards: Yards, name: str) -> tuple[str, str]:
    fields = {"name": name, "url": "https://example.com/", "event_types": "batch.completed"}
    fields |= {"secret": "whsec_s", "hint": "h"}
    await yards.state.webhooks.create(TENANT, f"we_{name}", fields, max_endpoints=9)
    await save_webhook(yards.state, yards.storage, TENANT, f"we_{name}")
    return webhook_key(TENANT, f"we_{name}"), ""


async def _file(yards: Yards, name: str) -> tuple[str, str]:
    batch_id = await yards.submit(name, 9)
    return (await yards.state.batches.get(batch_id)).fields["key"], batch_id


async def _file_record(yards: Yards, name: str) -> tuple[str, str]:
    return f"{(await yards.upload(f'file-{name:_<22}', lines(3))).key}.json", ""


async def _deletion(yards: Yards, name: str) -> tuple[str, str]:
    key = deleted_key(TENANT, f"file-{name:_<22}")
    await yards.storage.put(key, b"")
    return key, ""


async def _manifest(yards: Yards, name: str) -> tuple[str, str]:
    batch_id = await yards.start(name, 9)
    await yards.commit_some(batch_id, 1)
    return manifest_key(batch_id), batch_id


async def _pack(yards: Yards, name: str) -> tuple[str, str]:
    # So many that the middle of the object is in a row.
    [batch_id] = await pack_up(yards, name, rows=30)
    return (await yards.state.batches.get(batch_id)).fields["key"], batch_id


async def _plan(yards: Yards, name: str) -> tuple[str, str]:
    _, batch_id = await _manifest(yards, name)
    return plan_key(batch_id), batch_id


async def _copy(yards: Yards, name: str) -> tuple[str, str]:
    planner = a_planner(yards.state, yards.storage, yards.catalog, rows=8)
    batch_id = await yards.submit(name, 64, body=shuffled(8, 8))
    await planner.plan(batch_id)
    [key] = await yards.storage.keys(f"batches/{batch_id}/copies/")
    return key, batch_id


async def _addition(yards: Yards, name: str) -> tuple[str, str]:
    batch_id = await yards.open(name)
    await yards.add(batch_id, lines(9))
    await close(yards.state, yards.storage, batch_id)
    return addition_key(batch_id, 0), batch_id


async def _carried(yards: Yards, name: str) -> tuple[str, str]:
    """Of a batch without a table; what the damage costs a table is shown with the tables."""
    batch_id = await yards.start(name, 9)
    await reserve_copies(yards.state, batch_id, expires_at=0, now=time.time())
    await yards.storage.put(carried_key(batch_id), b"columns")
    return carried_key(batch_id), batch_id


async def _cancellation(yards: Yards, name: str) -> tuple[str, str]:
    batch_id = await yards.start(name, 9)
    await cancel(yards.state, yards.storage, batch_id)
    return cancel_key(batch_id), batch_id


async def _dataset(yards: Yards, name: str) -> tuple[str, str]:
    """Of a batch whose rows have been rendered: nothing reads it any more."""
    batch_id = await yards.start(name, 9)
    pinned = PinnedDataset(msgspec.Raw(b"{}"), [])
    return (await write_dataset(yards.state, yards.storage, batch_id, pinned)).key, batch_id


async def _lane_failure(yards: Yards, name: str) -> tuple[str, str]:
    batch_id = await yards.start(name, 9)
    [lane] = (await yards.state.batches.get(batch_id)).lanes
    await save_lane_failure(yards.storage, batch_id, lane, "out of memory")
    [key] = [one for one in await yards.storage.keys(f"batches/{batch_id}/") if "/lane-" in one]
    return key, batch_id


async def _part(yards: Yards, name: str) -> tuple[str, str]:
    batch_id = await yards.start(name, 9)
    await yards.commit_some(batch_id, 2)
    return (await yards.state.slices.parts(batch_id))[0].key, batch_id


async def _result(yards: Yards, name: str) -> tuple[str, str]:
    batch_id = await yards.complete(name, 9)
    return f"batches/{batch_id}/output_committed/output.jsonl", batch_id


async def _table(yards: Yards, name: str) -> tuple[str, str]:
    output = table_fields(TENANT, Output(), None, endpoint=CHAT, places=None)
    batch_id = await yards.complete(name, 9, **output)
    return f"{table_prefix(batch_id, Event.OUTPUT_COMMITTED)}part-00000.parquet", batch_id


async def _commit(yards: Yards, name: str) -> tuple[str, str]:
    batch_id = await yards.complete(name, 9)
    return commit_key(batch_id, Event.OUTPUT_COMMITTED), batch_id


async def _batch_record(yards: Yards, name: str) -> tuple[str, str]:
    batch_id = await yards.complete(name)
    await let_leave(yards.state, yards.storage, seconds=-1)
    return record_key(batch_id, 0), batch_id


async def _pipeline(yards: Yards, name: str) -> tuple[str, str]:
    return pipeline_key((await yards.pipeline(name)).id), ""


async def _handover(yards: Yards, name: str) -> tuple[str, str]:
    pipeline = await yards.pipeline(name)
    await create_handover(
        yards.storage, pipeline.id, 0, Handover(number=0), Sections(lines=lines(3))
    )
    return handover_key(pipeline.id, 0, 0), ""


async def _tokenizer(yards: Yards, name: str) -> tuple[str, str]:
    pipeline = await yards.pipeline(name, tokenizers={0: name.encode()})
    return tokenizer_key(pipeline.id, pipeline.stored.tokenizers[0]), ""


def _plain(prefix: str, *, name_by_number: bool = False) -> Callable[[Yards, str], Any]:
    async def make(yards: Yards, name: str) -> tuple[str, str]:
        number = [*DAMAGES, WHOLE].index(name.partition("-")[0])
        key = f"{prefix}{number:06d}" if name_by_number else f"{prefix}{name}"
        await yards.storage.put(key, b"anything")
        return key, ""

    return make


CASES: Mapping[Kind, Case] = {
    Kind.API_KEY: Case(_api_key),
    Kind.TENANT: Case(_tenant),
    Kind.WEBHOOK_ENDPOINT: Case(_webhook),
    # The bytes themselves are compared when they are read.
    Kind.FILE: Case(
        _file,
        dict.fromkeys(DAMAGES, "validating"),
        named=("flipped", "cut", "gone"),
        ends=dict.fromkeys(DAMAGES, "failed"),
    ),
    Kind.FILE_RECORD: Case(_file_record),
    Kind.DELETION: Case(_deletion, named=()),
    Kind.MANIFEST: Case(
        _manifest, {"flipped": None, "cut": None, "gone": None}, named=("flipped", "cut", "gone")
    ),
    # A flip is in the input here: its batch fails when the input is read.
    Kind.PACK: Case(
        _pack,
        {"flipped": "in_progress", "cut": None, "gone": None},
        named_again=("flipped",),
        ends=dict.fromkeys(DAMAGES, "failed"),
    ),
    Kind.DATASET: Case(_dataset, dict.fromkeys(DAMAGES, "in_progress"), named=()),
    Kind.PLAN: Case(_plan, dict.fromkeys(DAMAGES, "validating"), named=("flipped", "cut", "gone")),
    Kind.COPY: Case(_copy, dict.fromkeys(DAMAGES, "in_progress"), named=()),
    # Its lane's job finds it, or the rebuild: the batch fails.
    Kind.ADDITION: Case(
        _addition,
        dict.fromkeys(DAMAGES, "in_progress"),
        named=DAMAGES,
        named_again=DAMAGES,
        ends=dict.fromkeys(DAMAGES, "failed"),
    ),
    Kind.CARRIED: Case(_carried, dict.fromkeys(DAMAGES, "in_progress"), named=()),
    Kind.CANCELLATION: Case(
        _cancellation,
        {"flipped": "cancelling", "cut": "cancelling", "gone": "in_progress"},
        ends=dict.fromkeys((*DAMAGES, WHOLE), "cancelled"),
    ),
    # All rows were on that lane.
    Kind.LANE_FAILURE: Case(
        _lane_failure,
        {"flipped": "finalizing", "cut": "finalizing", "gone": "in_progress", WHOLE: "finalizing"},
    ),
    # The bytes themselves are compared when the results are put together.
    Kind.PART: Case(_part, dict.fromkeys(DAMAGES, "in_progress"), named=("cut",)),
    Kind.RESULT: Case(_result, dict.fromkeys(DAMAGES, "completed"), named=()),
    Kind.TABLE: Case(_table, dict.fromkeys(DAMAGES, "completed"), named=()),
    # Without a commit, the batch has not ended for all that S3 knows.
    Kind.COMMIT: Case(_commit, {"flipped": "completed", "cut": "completed", "gone": "finalizing"}),
    # A rebuild of an empty Redis reads the commits.
    Kind.BATCH_RECORD: Case(_batch_record, dict.fromkeys(DAMAGES, "completed"), named=()),
    Kind.PIPELINE: Case(_pipeline),
    # What a rebuild makes of Redis needs none; the pipeline fails when it reads it.
    Kind.HANDOVER: Case(_handover, named=()),
    Kind.TOKENIZER: Case(_tokenizer, named=()),
    Kind.UPLOAD_PART: Case(_plain("uploads/x/"), named=()),
    Kind.REBUILD: Case(_plain("rebuilds/", name_by_number=True), named=()),
    Kind.BILL: Case(_plain("bills/"), named=()),
    Kind.PROBE: Case(_plain("probes/"), named=()),
    Kind.QUARANTINE: Case(_plain("quarantine/"), named=()),
}


@pytest.fixture
def state(own_state: State) -> State:
    """On a Redis that the test may empty."""
    return own_state


@pytest.fixture
def yards(state: State, storage: Storage, tmp_path: Path) -> Yards:
    (tmp_path / "catalog.yaml").write_text(SMALL_ENGINES)
    catalog = load_catalog(tmp_path / "catalog.yaml")
    planner = a_planner(state, storage, catalog)
    finaliser = Finaliser(state, storage, output_seconds=3600)
    return Yards(BatchYard(state, storage, planner, finaliser), catalog)


class Made(NamedTuple):
    """An object of a kind, how it was damaged, and the bytes that it then had."""

    kind: Kind
    damage: str
    key: str
    batch_id: str
    body: bytes | None


async def damage_object(storage: Storage, key: str, damage: str) -> bytes | None:
    body, label = await storage.get(key), await storage.label(key)
    match damage:
        case "gone":
            await storage.remove([key])
            return None
        case "flipped":
            middle = len(body) // 2
            body = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :] if body else b"x"
        case _:
            body = body[: len(body) // 2]
    await storage.remove([key])
    await storage.put_once(key, body, label=label)
    return body


async def make_all(yards: Yards, kinds: Iterable[Kind]) -> list[Made]:
    """One object of each kind for each damage, and one that is whole."""
    made = []
    # Whatever has ended leaves Redis when a record of a batch is made.
    for kind in sorted(kinds, key=lambda kind: kind is not Kind.BATCH_RECORD):
        for damage in (*DAMAGES, WHOLE):
            key, batch_id = await CASES[kind].make(yards, f"{damage}-{kind.name.lower()}")
            assert kind_of(key) is kind
            body = None
            if damage != WHOLE:
                body = await damage_object(yards.storage, key, damage)
            made.append(Made(kind, damage, key, batch_id, body))
    return made


class Neighbours(NamedTuple):
    """Things of a tenant that have nothing to do with the damage."""

    ended: str
    running: str
    key: str
    endpoint: str

    @classmethod
    async def make(cls, yards: Yards) -> "Neighbours":
        ended, running = await yards.complete("ended"), await yards.start("running", 9)
        await yards.commit_some(running, 1)
        key = await create_key(yards.state, yards.storage, TENANT)
        await _webhook(yards, "neighbour")
        return cls(ended, running, key, "we_neighbour")

    async def look(self, yards: Yards) -> list[Any]:
        """What must not change."""
        record = await yards.record(self.ended)
        file = await yards.state.files.get(TENANT, record["output_file_id"])
        return [
            {name: text for name, text in record.items() if name != "claimed_at:m@gpu"},
            {**await yards.record(self.running), "in_progress_at": ""},
            await yards.state.slices.parts(self.running),
            file,
            await yards.storage.get(file.key),
            (await yards.state.keys.find(ids.api_key_id(ids.api_key_digest(self.key)))).tenant,
            (await yards.state.webhooks.fields(self.endpoint))["url"],
        ]


def test_every_kind_has_a_case() -> None:
    assert CASES.keys() == set(Kind)


async def test_a_commit_that_is_made_again_gives_a_tenant_no_object_that_its_listing_names(
    yards: Yards, redis_server: servers.Redis, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"s3://{yards.storage.bucket}/inbox/{TENANT}/"
    places = InputPlaces(yards.storage.bucket, "inbox/{tenant}/", {})
    output = table_fields(TENANT, Output(destination=place), None, endpoint=CHAT, places=places)
    honest, forging = [await yards.complete(name, **output) for name in ("honest", "forging")]
    theirs = (await yards.upload(f"file-{'secret':_<22}", lines(3))).key
    success = f"inbox/{TENANT}/{forging}/_SUCCESS"
    listing = msgspec.json.decode(await yards.storage.get(success))
    listing |= {"is_ours": True, "files": [{**listing["files"][0], "key": theirs}]}
    await yards.storage.put(success, msgspec.json.encode(listing))
    for batch_id in (honest, forging):
        key = commit_key(batch_id, Event.OUTPUT_COMMITTED)
        await damage_object(yards.storage, key, "cut")
    await empty(redis_server)
    name_fleet(monkeypatch, redis_server, s3, yards.storage)

    await _rebuild()

    [file_id] = (await yards.state.batches.get(honest)).table_file_ids
    file = await yards.state.files.get(TENANT, file_id)
    assert (file.owned, file.key.startswith(f"inbox/{TENANT}/{honest}/")) == (False, True)
    assert (await yards.state.batches.get(forging)).table_file_ids == []


#: Of these a rebuild names nothing.
_SILENT = {kind for kind, case in CASES.items() if not case.named}


@pytest.mark.parametrize("kinds", [_SILENT, set(Kind) - _SILENT], ids=["silent", "named"])
async def test_a_rebuild_names_the_damage_sets_it_aside_and_finishes_with_the_rest(
    kinds: set[Kind],
    yards: Yards,
    redis_server: servers.Redis,
    s3: S3,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    neighbours = await Neighbours.make(yards)
    before = await neighbours.look(yards)
    made = await make_all(yards, kinds)
    whole = {
        one.kind: await _status(yards, one.batch_id)
        for one in made
        if one.batch_id and one.damage == WHOLE
    }
    await empty(redis_server)
    name_fleet(monkeypatch, redis_server, s3, yards.storage)

    code, told = await _rebuild()

    assert await neighbours.look(yards) == before
    assert code == (ExitCode.DONE if kinds == _SILENT else ExitCode.DAMAGED)
    named = {one["key"]: one for one in told["damaged_objects"]}
    assert set(named) == {one.key for one in made if one.damage in CASES[one.kind].named}
    assert told["damaged"] == len(named)
    for one in made:
        if one.key in named and one.body is not None and one.kind is not Kind.FILE:
            moved = named[one.key]["moved_to"]
            assert moved.startswith(QUARANTINE)
            assert await yards.storage.get(moved) == one.body
    of_batches = [one for one in made if one.batch_id]
    assert {(one.kind, one.damage): await _status(yards, one.batch_id) for one in of_batches} == {
        (one.kind, one.damage): {WHOLE: whole[one.kind], **CASES[one.kind].statuses}[one.damage]
        for one in of_batches
    }
    # Nobody is refused any more, and the next rebuild finds nothing new.
    await yards.state.restore.raise_if_under_way()
    code, told = await _rebuild()
    again = {one["key"] for one in told["damaged_objects"]}
    # Bytes of files are compared when they are read, and stay where they are.
    files = {one.key for one in made if one.kind is Kind.FILE}
    assert again - files == {one.key for one in made if one.damage in CASES[one.kind].named_again}
    await run_all(yards, [neighbours.running, *(one.batch_id for one in of_batches)])
    for one in made:
        if (one.kind, one.damage) == (Kind.PACK, "flipped"):
            errors = (await yards.state.batches.get(one.batch_id)).fields["errors"]
            assert json.loads(errors)[0]["code"] == "input_changed"


async def test_a_fleet_at_work_fails_at_most_what_the_damage_is_in(yards: Yards) -> None:
    neighbours = await Neighbours.make(yards)
    before = await neighbours.look(yards)
    made = await make_all(yards, Kind)
    of_batches = [one for one in made if one.batch_id]
    batch_ids = [one.batch_id for one in of_batches]
    # What was claimed comes back, as from a lane job that has ended.
    for claim in yards.claims:
        await yards.state.claims.release(claim)

    for batch_id in batch_ids:
        record = await yards.state.batches.get(batch_id)
        manifest = to_manifest(record.fields)
        # Its sender repeats the message, and changes something.
        again = await accept(yards.state, yards.storage, manifest)
        assert (again.batch_id, again.is_duplicate) == (batch_id, True)
        await yards.state.controls.amend(batch_id, metadata='{"a": "b"}')
        await save_changes(yards.state, yards.storage, batch_id)
        assert await read_manifest(yards.storage, batch_id) is not None
    await Reaper(yards.state, yards.storage).sweep()
    await forget_ended(yards.state, yards.storage, seconds=-1)
    assert (await neighbours.look(yards))[2:] == before[2:]
    await run_all(yards, [neighbours.running, *batch_ids])

    assert {(one.kind, one.damage): await _status(yards, one.batch_id) for one in of_batches} == {
        (one.kind, one.damage): CASES[one.kind].ends.get(one.damage, "completed")
        for one in of_batches
    }
    assert await _status(yards, neighbours.running) == "completed"


@pytest.mark.parametrize("damage", ["flipped", "cut"])
async def test_of_a_pack_with_a_damaged_line_the_other_batches_go_on(
    damage: str, yards: Yards, redis_server: servers.Redis, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_ids = await pack_up(yards, "one", "two", "three")
    key = (await yards.state.batches.get(batch_ids[0])).fields["key"]
    body = await yards.storage.get(key)
    last_line = body.rindex(b"\n", 0, -1) + 1
    place = last_line + 200
    flipped = body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :]
    await yards.storage.put(key, flipped if damage == "flipped" else body[:last_line])
    await empty(redis_server)
    name_fleet(monkeypatch, redis_server, s3, yards.storage)

    code, told = await _rebuild()

    assert code == ExitCode.DAMAGED
    [named] = told["damaged_objects"]
    assert (named["key"], named["reason"]) == (key, "1 of its lines cannot be read")
    assert len(await yards.storage.get(named["moved_to"])) > last_line - 1
    assert await yards.storage.stat(key)
    statuses = [await _status(yards, batch_id) for batch_id in batch_ids]
    assert sorted(map(str, statuses)) == ["None", "in_progress", "in_progress"]
    await run_all(yards, batch_ids)


async def test_a_damaged_pack_stops_nobody_from_forgetting_other_batches(yards: Yards) -> None:
    ended, other = await pack_up(yards, "ended"), await pack_up(yards, "other")
    for batch_id in (*ended, *other):
        await cancel(yards.state, yards.storage, batch_id)
        await yards.yard.finaliser.finish(batch_id)
        for file_id in (await yards.state.batches.get(batch_id)).file_ids:
            with suppress(NotFoundError):
                await yards.state.files.delete(TENANT, file_id)
    key = (await yards.state.batches.get(ended[0])).fields["key"]
    await damage_object(yards.storage, key, "cut")
    await yards.storage.remove([(await yards.state.batches.get(other[0])).fields["key"]])

    await forget_ended(yards.state, yards.storage, seconds=-1)

    assert await _status(yards, other[0]) is None
    assert await yards.storage.stat(key)


async def _status(yards: Yards, batch_id: str) -> str | None:
    try:
        return (await yards.state.batches.get(batch_id)).status
    except NotFoundError:
        return None


async def run_all(yards: Yards, batch_ids: list[str]) -> None:
    """Whatever is still known comes to an end, and has each row once."""
    for batch_id in batch_ids:
        if await _status(yards, batch_id) is None:
            continue
        # Whoever claims gets slices of others too, and on a busy machine claims run out.
        for _ in range(100):
            if await _status(yards, batch_id) in FINAL:
                break
            await yards.yard.planner.plan(batch_id)
            record = await yards.state.batches.get(batch_id)
            if record.status == "in_progress":
                for claim in await yards.yard.claim(batch_id):
                    await _answer(yards, claim)
                for lane in record.lanes:
                    await fail_lost_inputs(yards.state, yards.storage, lane)
            await yards.yard.finaliser.finish(batch_id)
        record = await yards.state.batches.get(batch_id)
        assert record.status in FINAL
        names = [name for name in ("output_file_id", "error_file_id") if name in record.fields]
        if record.status == "failed" or not all(
            [await _is_there(yards, record.fields[name]) for name in names]
        ):
            continue
        rows = [
            line["custom_id"]
            for name in names
            for line in await yards.yard.parsed(record.fields[name])
        ]
        assert len(rows) == len(set(rows)) == record.number("total")


async def _answer(yards: Yards, claim: Any) -> None:
    fetched = await fetch(yards.storage, claim)
    if isinstance(fetched.lines, Outcome):
        result = SliceResult(fetched.lines, nothing())
        settling = asyncio.create_task(settle(yards.state, yards.storage, claim, result))
        while not settling.done():
            # The dispatcher's part of it, for which the lane job waits.
            await fail_lost_inputs(yards.state, yards.storage, claim.lane)
            await asyncio.wait({settling}, timeout=0.05)
        await settling
        return
    await yards.yard.commit(claim, [good(f"{row}") for row in claim.slice.row_numbers])


async def _is_there(yards: Yards, file_id: str) -> bool:
    try:
        file = await yards.state.files.get(TENANT, file_id)
        await yards.storage.get(file.key, etag=file.etag)
    except (NotFoundError, BrokenObjectError):
        return False
    return True


def name_fleet(
    monkeypatch: pytest.MonkeyPatch, redis: servers.Redis, s3: S3, storage: Storage
) -> None:
    environment = {
        "REDIS_URL": redis.url,
        "S3_ENDPOINT": s3.endpoint,
        "S3_ACCESS_KEY": s3.access_key,
        "S3_SECRET_KEY": s3.secret_key,
        "S3_BUCKET": storage.bucket,
    }
    for name, text in environment.items():
        monkeypatch.setenv(f"BATCHYARD_{name}", text)


async def _rebuild() -> tuple[int, dict[str, Any]]:
    result = await asyncio.to_thread(CliRunner().invoke, app, ["rebuild", "--json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, json.loads(result.stdout)
