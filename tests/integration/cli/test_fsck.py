"""`batchyard fsck`: it finds each damage, repairs what is safe, and raises no false alarm."""

import asyncio
import json
import re
import time
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from cli import servers
from cli.__main__ import app
from cli.client.exit_codes import ExitCode
from cli.fsck.notebook import Notebook
from dispatcher.finaliser import Finaliser
from dispatcher.reaper import Reaper
from dispatcher.row_cache import CacheLimits, RowCache
from shared.catalog_file import load_catalog
from shared.errors import SetupError
from shared.ledger.additions import addition_key
from shared.ledger.commits import cancel
from shared.ledger.copies import copies_prefix
from shared.ledger.kinds import Kind
from shared.ledger.manifests import manifest_key
from shared.ledger.packs import PACKS
from shared.ledger.quarantine import QUARANTINE
from shared.retention import RESERVED_SECONDS
from shared.state import State
from shared.storage import Listed, Storage
from shared.tasks import end
from tests.faults.s3_proxy import s3_proxy
from tests.integration.cli.test_damage import (
    CASES,
    DAMAGES,
    WHOLE,
    Neighbours,
    make_all,
    name_fleet,
)
from tests.integration.cli.yards import Yards, empty, pack_up
from tests.integration.dispatcher.conftest import SMALL_ENGINES, BatchYard, a_planner, good, lines
from tests.integration.dispatcher.test_row_cache import asking, ran, with_cache
from tests.servers import S3

_NOTHING = dict.fromkeys(DAMAGES, "")
#: Of those that carry a checksum, and that Redis knows.
_EVERYTHING = {"flipped": "damaged", "cut": "damaged", "gone": "missing"}
#: What is found of each kind, by damage.
_FOUND: Mapping[Kind, Mapping[str, str]] = {
    **dict.fromkeys(Kind, _EVERYTHING),
    Kind.DELETION: _NOTHING,
    Kind.UPLOAD_PART: _NOTHING,
    Kind.REBUILD: _NOTHING,
    Kind.BILL: _NOTHING,
    Kind.PROBE: _NOTHING,
    Kind.QUARANTINE: _NOTHING,
    # What damage to it costs is told when the table of its batch is made.
    Kind.CARRIED: _NOTHING,
    # The pipeline itself misses them, and fails.
    Kind.PIPELINE: {**_EVERYTHING, "gone": ""},
    Kind.HANDOVER: {**_EVERYTHING, "gone": ""},
    Kind.TOKENIZER: {**_EVERYTHING, "gone": ""},
    # Nobody misses it: its lines are in the input.
    Kind.COPY: {**_EVERYTHING, "gone": ""},
    # Redis has not heard of it in this test.
    Kind.LANE_FAILURE: {**_EVERYTHING, "gone": ""},
    # Once rendered, it is not missed either.
    Kind.DATASET: {**_EVERYTHING, "gone": ""},
    # What is missing without a pack is the manifest. A flip is in the input.
    Kind.PACK: {"flipped": "", "cut": "damaged", "gone": "missing"},
}
#: Kinds of which something is left after a repair.
_LEFT = {
    *(Kind.ADDITION, Kind.FILE, Kind.PACK, Kind.PLAN, Kind.RESULT, Kind.TABLE),
    *(Kind.LANE_FAILURE, Kind.DATASET, Kind.PIPELINE, Kind.HANDOVER),
    Kind.TOKENIZER,
}


#: Kinds of which nothing is found.
_SILENT = {kind for kind, found in _FOUND.items() if not any(found.values())}


@pytest.fixture
def state(own_state: State) -> State:
    """On a Redis that the test may empty."""
    return own_state


@pytest.fixture
def yards(state: State, storage: Storage, tmp_path: Path) -> Yards:
    (tmp_path / "catalog.yaml").write_text(SMALL_ENGINES)
    catalog = load_catalog(tmp_path / "catalog.yaml")
    planner = a_planner(state, storage, catalog)
    finaliser = Finaliser(state, storage, output_seconds=3600, keep_parts=True)
    return Yards(BatchYard(state, storage, planner, finaliser), catalog)


@pytest.fixture(autouse=True)
def _at_once(
    monkeypatch: pytest.MonkeyPatch, redis_server: servers.Redis, s3: S3, storage: Storage
) -> None:
    """Objects of a moment ago count, and nothing takes long."""
    monkeypatch.setattr("cli.fsck.references.YOUNG_SECONDS", -60)
    monkeypatch.setattr("cli.fsck.objects.YOUNG_SECONDS", -60)
    monkeypatch.setattr("cli.fsck.repair._MIN_AGE_SECONDS", -60)
    monkeypatch.setattr("cli.fsck.command._SETTLE_SECONDS", 0.5)
    name_fleet(monkeypatch, redis_server, s3, storage)


async def _fsck(*options: str) -> tuple[int, dict[str, Any]]:
    result = await asyncio.to_thread(CliRunner().invoke, app, ["fsck", "--json", *options])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    # A repair logs what it does.
    return result.exit_code, json.loads(result.stdout.splitlines()[-1])


async def _everything(yards: Yards) -> None:
    """A whole object of each kind, and what lies about while a fleet works."""
    await Neighbours.make(yards)
    for kind, case in CASES.items():
        if kind is not Kind.LANE_FAILURE:
            await case.make(yards, WHOLE if "plain" in case.make.__qualname__ else kind.name)
    [packed] = await pack_up(yards, "packed and ended")
    await yards.yard.run(packed, lambda _: good())
    await yards.yard.finaliser.finish(packed)
    refused = await yards.start("refused", 0, body=b"no JSON\n")
    cancelled = await yards.start("cancelled", 3)
    await cancel(yards.state, yards.storage, cancelled)
    await yards.yard.finaliser.finish(cancelled)
    assert (await yards.state.batches.get(refused)).status == "failed"
    # An upload that is under way.
    await yards.state.files.reserve("files/acme/file-new", seconds=RESERVED_SECONDS)
    await yards.storage.put("files/acme/file-new", b"the first half")
    # A part of a claim that was lost, and objects that are no fleet's.
    running = await yards.start("with an orphan", 3)
    await yards.storage.put(f"batches/{running}/parts/000000-9.jsonl", b"never committed")
    await yards.storage.put("inbox/acme/in.jsonl", b"{}")


@pytest.mark.parametrize("option", [(), ("--fast",)])
async def test_a_fleet_that_is_well_gives_no_finding(option: tuple[str, ...], yards: Yards) -> None:
    await _everything(yards)
    await Reaper(yards.state, yards.storage).sweep()
    # The part without a label is damaged, if anybody looks at it.
    orphans = 0 if option else 1

    code, told = await _fsck(*option)

    assert [one["key"][-13:] for one in told["findings"]] == ["00000-9.jsonl"] * orphans
    assert (code == ExitCode.DONE) is not bool(orphans)
    assert told["objects"] > 50
    assert told["records"] > 20


async def test_batches_whose_manifests_share_an_object_miss_it(yards: Yards) -> None:
    batch_ids = await yards.submit_together("first", "second")
    _, well = await _fsck()
    await yards.storage.remove(await yards.storage.keys(PACKS))

    _, told = await _fsck()

    assert well["findings"] == []
    assert {(one["key"], one["problem"]) for one in told["findings"]} == {
        (manifest_key(batch_id), "missing") for batch_id in batch_ids
    }


@pytest.mark.parametrize(
    "kinds", [_SILENT, set(Kind) - _SILENT - _LEFT, _LEFT], ids=["silent", "repaired", "left"]
)
async def test_each_damage_is_found_and_what_is_safe_is_repaired(
    kinds: set[Kind], yards: Yards
) -> None:
    neighbours = await Neighbours.make(yards)
    before = await neighbours.look(yards)
    made = await make_all(yards, kinds)

    code, told = await _fsck()
    _, repaired = await _fsck("--repair")
    code_after, after = await _fsck()

    wanted = {
        (one.kind, one.damage, _FOUND[one.kind][one.damage])
        for one in made
        if one.damage != WHOLE and _FOUND[one.kind][one.damage]
    }
    found = [
        (one.kind, one.damage, finding["problem"])
        for finding in told["findings"]
        for one in made
        if finding["key"] == one.key or (one.kind is Kind.PACK and one.batch_id in finding["key"])
    ]
    assert set(found) == wanted
    # Nothing else was found, either.
    assert len(found) == len(told["findings"])
    assert code == (ExitCode.DAMAGED if wanted else ExitCode.DONE)
    assert len(repaired["findings"]) == told["found"] == len(told["findings"])
    assert await neighbours.look(yards) == before
    if kinds is not _LEFT:
        assert all(one["repair"] for one in repaired["findings"])
        assert (code_after, after["findings"]) == (ExitCode.DONE, [])
    # Nothing was deleted: what had bytes has them somewhere.
    keys = await yards.storage.keys(QUARANTINE)
    kept = {await yards.storage.get(key) for key in keys}
    for one in made:
        if one.body is not None and one.damage != WHOLE and one.body not in kept:
            assert await yards.storage.get(one.key) == one.body


async def test_a_copy_that_alone_has_its_lines_is_missed(yards: Yards) -> None:
    planner = a_planner(yards.state, yards.storage, yards.catalog, strict_input=False)
    batch_id = await yards.submit("with a bad line", 3, body=lines(2) + b"{")
    await planner.plan(batch_id)
    [key] = await yards.storage.keys(copies_prefix(batch_id))
    await yards.storage.remove([key])

    _, told = await _fsck()

    assert [(one["key"], one["problem"]) for one in told["findings"]] == [(key, "missing")]


async def test_an_addition_is_missed_though_its_rows_have_answers_elsewhere(yards: Yards) -> None:
    cache = RowCache(yards.state, yards.storage, yards.catalog, CacheLimits(86_400, 1000))
    await ran(with_cache(yards.state, yards.storage, yards.catalog), asking("a", "b"))
    batch_id = await yards.open("known", cache_seconds=86_400)
    for text in ("a", "b"):
        record = await yards.state.batches.get(batch_id)
        await yards.additions(cache).add(record, asking(text))
    keys = await yards.storage.keys(copies_prefix(batch_id))
    answers = sorted(key for key in keys if key.endswith("-answers.jsonl"))
    assert len(answers) == 2
    # Nobody misses answers: their rows run.
    await yards.storage.remove([addition_key(batch_id, 0), answers[1]])

    _, told = await _fsck()

    found = [(one["key"], one["problem"]) for one in told["findings"] if batch_id in one["key"]]
    assert found == [(addition_key(batch_id, 0), "missing")]


async def test_without_bodies_it_reads_none(
    yards: Yards, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _everything(yards)
    with s3_proxy(s3.endpoint) as proxy:
        monkeypatch.setenv("BATCHYARD_S3_ENDPOINT", proxy.endpoint)
        await _fsck("--fast")
        fast = [path for method, path in proxy.tries if method == "GET" and "list-type" not in path]
        await _fsck()
        full = [path for method, path in proxy.tries if method == "GET" and "list-type" not in path]

    # What Redis no longer has of a batch stands in its record.
    assert [path for path in fast if not re.search(r"/record-\d+\.json$", path)] == []
    assert len(full) > 20


async def test_redis_that_went_back_in_time_is_said_and_left_to_a_rebuild(
    yards: Yards, redis_server: servers.Redis
) -> None:
    await Neighbours.make(yards)
    await empty(redis_server)

    code, told = await _fsck("--repair")

    assert code == ExitCode.DAMAGED
    unindexed = {one["kind"] for one in told["findings"] if one["problem"] == "unindexed"}
    assert unindexed == {"API key", "webhook endpoint", "manifest"}


async def test_beside_a_fleet_at_work_there_is_no_false_alarm(yards: Yards) -> None:
    await Neighbours.make(yards)
    done = 0

    async def work(name: str) -> None:
        nonlocal done
        while True:
            done += 1
            await yards.complete(f"{name}{done}", 7)
            await Reaper(yards.state, yards.storage).sweep()

    # A logger that is made while a command runs would write to the command's output for ever.
    with capture_logs():
        working = [asyncio.create_task(work(name)) for name in "ab"]
        began, alarms = time.monotonic(), []
        while time.monotonic() - began < 12:
            for option in ((), ("--fast",)):
                _, told = await _fsck(*option)
                alarms += told["findings"]
        broken = [task.exception() for task in working if task.done()]
        await end(*working)

    assert (alarms, broken) == ([], [])
    assert done > 5


async def test_it_does_not_look_while_redis_is_rebuilt(yards: Yards) -> None:
    await yards.state.restore.begin()

    with pytest.raises(SetupError, match="being rebuilt"):
        await _fsck()


def test_notes_of_many_objects_take_no_memory() -> None:
    with Notebook() as notebook:
        tracemalloc.start()
        for page in range(100):
            names = (f"batches/batch_{page:08x}{n:024x}/manifest.json" for n in range(1000))
            notebook.note(Listed(name, "e" * 32, 100, 0.0) for name in names)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()

        assert notebook.listed(f"batches/batch_{99:08x}{999:024x}/manifest.json")
    assert peak < 1_000_000
