"""The steps of a rebuild. Each may be repeated; memory does not grow with what there is."""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing

import msgspec
import stamina

from cli.rebuild.from_s3 import Found, ended, grouped, live, plan_of
from shared import crash
from shared.errors import NotFoundError, SetupError
from shared.ledger.commits import Cancellation, LaneFailure, read_commit
from shared.ledger.keys import KEYS, read_key
from shared.ledger.manifests import Manifest
from shared.ledger.packs import PACKS, PackedBatch, read_manifest, read_pack
from shared.ledger.plans import read_plan
from shared.ledger.webhook_endpoints import WEBHOOKS, read_webhook
from shared.lifecycle import FINAL, TRANSITIONS
from shared.state import FileRecord, State
from shared.state.restore import EndedBatch, LiveBatch
from shared.storage import Listed, Storage

BATCHES, FILES, DELETED = "batches/", "files/", "deleted/"
#: Each rebuild has a number of its own, so that what it gives out nobody has had.
NUMBERS = "rebuilds/"
#: Numbers of events and epochs begin anew at a multiple of this.
STRIDE = 1_000_000
#: Batch ids are digests: each of these has a sixteenth of them, and is listed on its own.
_SHARDS = "0123456789abcdef"
#: Batches that are read and written together, of each shard.
_TOGETHER = 64
_PACKS_AT_ONCE = 16
#: Small objects of other kinds that are read together.
_AT_ONCE = 100
#: Of a listing, whose files are made while the next is read.
_PAGES_AT_ONCE = 3
#: Longer than any dispatcher keeps its lease, which it cannot renew meanwhile.
_LEASE_SECONDS = 60.0
#: Files younger than this may be on their way.
_YOUNG_SECONDS = 60

#: How far a step is, from 0 to 1.
Told = Callable[[str, float], None]


class Rebuild:
    """Makes what Redis knows follow from what lies in S3, wherever they differ."""

    def __init__(self, state: State, storage: Storage, *, told: Told) -> None:
        self._state = state
        self._storage = storage
        self._told = told
        self._base = 0
        self._shares: dict[str, float] = {}
        #: How many there were of what, by what came of it.
        self.counts: Counter[str] = Counter()
        #: Batches that S3 has too little of, with the reason; the first few.
        self.problems: list[str] = []

    async def run(self) -> None:
        """Do all of it. Raises SetupError when the fleet does not stand still for it."""
        self._base = STRIDE * await self._number()
        restore = self._state.restore
        await restore.begin()
        crash.point("rebuild.begun")
        await self._still()
        await restore.forget_notes()
        await self._keys()
        await self._webhooks()
        await self._batches()
        crash.point("rebuild.batches_done")
        await self._files()
        await self._deleted()
        await restore.forget_notes()
        crash.point("rebuild.files_done")
        await restore.end()

    async def look(self) -> None:
        """Count what `run` would do, and change nothing."""
        async for page in self._storage.pages(PACKS):
            self.counts["packs"] += len(page)
        await self._over_batches(self._count)
        for tenant in await self._storage.folders(FILES):
            async for records, _ in self._file_pages(tenant):
                known = await self._state.restore.known_files([_file_id(key) for key in records])
                self.counts["files_made"] += known.count(False)
        for what, prefix in (("keys", KEYS), ("webhook_endpoints", WEBHOOKS)):
            async for page in self._storage.pages(prefix):
                self.counts[what] += len(page)

    async def _number(self) -> int:
        """One more than any rebuild of this bucket has had."""
        while True:
            known = [int(key.removeprefix(NUMBERS)) for key in await self._storage.keys(NUMBERS)]
            number = max(known, default=0) + 1
            if await self._storage.create(f"{NUMBERS}{number:06d}", b""):
                return number

    async def _still(self) -> None:
        """Wait until nobody leads, and take from the lane jobs what they hold."""
        async for attempt in stamina.retry_context(
            on=_LeadsError, attempts=None, timeout=_LEASE_SECONDS, wait_initial=0.2, wait_max=1
        ):
            with attempt:
                if await self._state.restore.has_leader():
                    raise _LeadsError(
                        "A dispatcher still leads after a minute. Stop the dispatchers, and run "
                        "this again."
                    )
        await self._state.restore.take_lanes()

    async def _keys(self) -> None:
        async for page in self._storage.pages(KEYS):
            for kept in map(read_key, await self._bodies(page)):
                fields = msgspec.to_builtins(kept)
                del fields["id"], fields["digest"]
                fields = {name: value for name, value in fields.items() if value is not None}
                is_new = await self._state.restore.key(kept.id, kept.digest, fields)
                self.counts["keys_made"] += is_new
                self.counts["keys"] += 1
        self._told("keys", 1.0)

    async def _webhooks(self) -> None:
        kept = set()
        async for page in self._storage.pages(WEBHOOKS):
            for listed, body in zip(page, await self._bodies(page), strict=True):
                _, tenant, name = listed.key.split("/")
                endpoint_id = name.removesuffix(".json")
                kept.add(endpoint_id)
                is_new = await self._state.restore.webhook(tenant, endpoint_id, read_webhook(body))
                self.counts["webhook_endpoints_made"] += is_new
                self.counts["webhook_endpoints"] += 1
        async for tenant, endpoint_id in self._state.restore.webhooks():
            if endpoint_id not in kept:
                await self._state.restore.delete_webhook(tenant, endpoint_id)
                self.counts["webhook_endpoints_deleted"] += 1
        self._told("webhooks", 1.0)

    async def _batches(self) -> None:
        last = await self._packs()
        await self._over_batches(self._restore)
        # Those that were on their way, whose acceptance was refused meanwhile.
        await self._packs(after=last)
        # What is left has nothing but its line in a pack.
        while batch_ids := await self._state.restore.some_packed(limit=_TOGETHER):
            await self._restore([Found(batch_id) for batch_id in batch_ids])

    async def _packs(self, *, after: str | None = None) -> str:
        """Lay the manifests and plans in packs by, in Redis: there may be any number.

        `after` the last one of before, those that Redis knows are dealt with. Returns the last one.
        """
        last = after or ""
        async for listed in self._storage.pages(PACKS):
            page = [one for one in listed if one.key > (after or "")]
            last = max([last, *(one.key for one in page)])
            for first in range(0, len(page), _PACKS_AT_ONCE):
                some = page[first : first + _PACKS_AT_ONCE]
                packs = await asyncio.gather(*(read_pack(self._storage, one.key) for one in some))
                # The oldest first: of a batch in several packs, that one counts.
                for batches in packs:
                    texts = {one.manifest.id: msgspec.json.encode(one).decode() for one in batches}
                    if after is not None:
                        for known in await self._state.batches.statuses(list(texts)):
                            del texts[known]
                    await self._state.restore.keep_packed(texts)
        return last

    async def _over_batches(
        self, act: Callable[[list[Found]], Coroutine[None, None, None]]
    ) -> None:
        async with asyncio.TaskGroup() as shards:
            for shard in _SHARDS:
                shards.create_task(self._shard(shard, act))

    async def _shard(
        self, shard: str, act: Callable[[list[Found]], Coroutine[None, None, None]]
    ) -> None:
        pages = self._storage.pages(f"{BATCHES}batch_{shard}")
        async with aclosing(pages), aclosing(grouped(pages, size=_TOGETHER)) as groups:
            async for some in groups:
                await act(some)
                # Ids are digests: how far the listing has come is how much of it is done.
                digits = some[-1].batch_id.removeprefix(f"batch_{shard}")[:6]
                self._share(shard, int(digits or "0", 16) / 16 ** len(digits or "0"))
        self._share(shard, 1.0)

    def _share(self, shard: str, share: float) -> None:
        self._shares[shard] = share
        self._told("batches", sum(self._shares.values()) / len(_SHARDS))

    async def _count(self, some: list[Found]) -> None:
        statuses = await self._state.batches.statuses([found.batch_id for found in some])
        self.counts["batches"] += len(some)
        for found in some:
            if statuses.get(found.batch_id) in FINAL:
                self.counts["batches_kept"] += 1
            else:
                what = "ended" if found.commit else "running"
                self.counts[f"batches_{what}"] += 1

    async def _restore(self, some: list[Found]) -> None:
        statuses = await self._state.batches.statuses([found.batch_id for found in some])
        self.counts["batches"] += len(some)
        kept = [found for found in some if statuses.get(found.batch_id) in FINAL]
        others = [found for found in some if found not in kept]
        await self._keep(kept)
        made = await asyncio.gather(*map(self._read, others))
        over = [one for one in made if isinstance(one, EndedBatch)]
        outcomes = await self._state.restore.ended(over, base=self._base) if over else []
        for outcome in outcomes:
            self.counts["batches_ended"] += outcome != "ended"
        crash.point("rebuild.ended_made")
        for one in made:
            if isinstance(one, LiveBatch):
                await self._state.restore.live(one, base=self._base)
                self.counts["batches_running"] += 1
                self.counts["slices"] += len(one.slices)
                self.counts["parts"] += len(one.parts or {})
                crash.point("rebuild.live_made")
        await self._state.restore.drop_packed([found.batch_id for found in some])

    async def _keep(self, some: list[Found]) -> None:
        """Batches that have ended in Redis as well: only what a client changed since may lack."""
        if not some:
            return
        self.counts["batches_kept"] += len(some)
        await self._state.restore.raise_numbers([found.batch_id for found in some], self._base)
        for found in some:
            if found.commit and found.has_changed_since(found.commit):
                manifest = await self._manifest(found)
                if manifest is not None:
                    await self._state.restore.set_metadata(found.batch_id, manifest.metadata)

    async def _read(self, found: Found) -> EndedBatch | LiveBatch | None:
        now = time.time()
        if found.commit is not None:
            commit = await read_commit(self._storage, found.batch_id, found.commit)
            manifest = None
            if found.has_changed_since(found.commit):
                manifest = await self._manifest(found)
            # Where it was cancelled while it was written down, the commit never came about.
            if commit.record["status"] in TRANSITIONS[found.commit].sources:
                return ended(found, commit, manifest, now=now)
        packed = None
        if text := await self._state.restore.packed(found.batch_id):
            packed = msgspec.json.decode(text, type=PackedBatch)
        manifest = await self._manifest(found)
        if manifest is None and packed is not None:
            manifest = packed.manifest
        if manifest is None:
            # Its sender got no answer: what lies there is an input at most.
            self._problem(f"{found.batch_id} has no manifest")
            return None
        plan = None
        if "plan.json" in found.written:
            plan = await read_plan(self._storage, found.batch_id)
        elif packed is not None and packed.plan is not None:
            plan = plan_of(packed.plan, manifest)
        folder = f"{BATCHES}{found.batch_id}/"
        cancellation = None
        if "cancel.json" in found.written:
            body = await self._storage.get(f"{folder}cancel.json")
            cancellation = msgspec.json.decode(body, type=Cancellation)
        failures = [
            msgspec.json.decode(await self._storage.get(f"{folder}{name}"), type=LaneFailure)
            for name in found.lane_failures
        ]
        labels = {} if plan is None else await self._labels(found)
        return live(
            found,
            manifest,
            plan,
            cancellation,
            failures,
            labels=labels,
            plan_name=secrets.token_hex(4),
            now=now,
        )

    async def _labels(self, found: Found) -> dict[int, str]:
        labels: dict[int, str] = {}
        parts = list(found.parts.items())
        for first in range(0, len(parts), _AT_ONCE):
            some = parts[first : first + _AT_ONCE]
            texts = await asyncio.gather(*(self._storage.label(one.key) for _, (_, one) in some))
            labels |= {index: text for (index, _), text in zip(some, texts, strict=True)}
        return labels

    async def _manifest(self, found: Found) -> Manifest | None:
        """Its own manifest, if it has one."""
        if "manifest.json" not in found.written:
            return None
        try:
            return await read_manifest(self._storage, found.batch_id)
        except NotFoundError:
            return None

    def _problem(self, text: str) -> None:
        self.counts["problems"] += 1
        if len(self.problems) < _SHOWN_PROBLEMS:
            self.problems.append(text)

    async def _files(self) -> None:
        began = time.time()
        room = asyncio.Semaphore(_PAGES_AT_ONCE)
        for tenant in await self._storage.folders(FILES):
            async with asyncio.TaskGroup() as making:
                async for records, orphans in self._file_pages(tenant):
                    await room.acquire()
                    task = making.create_task(self._make_files(records))
                    task.add_done_callback(lambda _: room.release())
                    await self._state.restore.orphans([(_file_id(key), key) for key in orphans])
                    self.counts["objects_orphaned"] += len(orphans)
                    self._told("files", 0.5)
        async for files in self._state.restore.unseen_files():
            for file in files:
                # Deleted after the state that Redis has.
                if file.created_at < began - _YOUNG_SECONDS:
                    gone = await self._state.restore.delete_file(file.tenant, file.id)
                    self.counts["files_deleted"] += gone
        self._told("files", 1.0)

    async def _make_files(self, records: Sequence[str]) -> None:
        file_ids = [_file_id(key) for key in records]
        await self._state.restore.see_files(file_ids)
        known = await self._state.restore.known_files(file_ids)
        missing = [key for key, is_known in zip(records, known, strict=True) if not is_known]
        for first in range(0, len(missing), _AT_ONCE):
            some = missing[first : first + _AT_ONCE]
            bodies = await asyncio.gather(*(self._storage.get(f"{key}.json") for key in some))
            fields = [msgspec.json.decode(body, type=dict[str, str | int]) for body in bodies]
            files = [FileRecord.from_fields(_texts(one)) for one in fields]
            made = await self._state.restore.files(files)
            # Not in one statement: other pages count meanwhile.
            self.counts["files_made"] += made

    async def _file_pages(self, tenant: str) -> AsyncIterator[tuple[list[str], list[str]]]:
        """Keys of objects with a record beside them, and of those without."""
        last = ""
        async for page in self._storage.pages(f"{FILES}{tenant}/"):
            records: list[str] = []
            orphans: list[str] = []
            for listed in page:
                if last and listed.key == f"{last}.json":
                    records.append(last)
                    last = ""
                elif not listed.key.endswith(".json"):
                    orphans += [last] if last else []
                    last = listed.key
            yield records, orphans
        if last:
            yield [], [last]

    async def _deleted(self) -> None:
        """Files of batches that were deleted: their batches would bring them back."""
        async for page in self._storage.pages(DELETED):
            for listed in page:
                _, tenant, file_id = listed.key.split("/")
                gone = await self._state.restore.delete_file(tenant, file_id)
                self.counts["files_deleted"] += gone

    async def _bodies(self, page: Sequence[Listed]) -> list[bytes]:
        bodies: list[bytes] = []
        for first in range(0, len(page), _AT_ONCE):
            some = page[first : first + _AT_ONCE]
            bodies += await asyncio.gather(*(self._storage.get(listed.key) for listed in some))
        return bodies


_SHOWN_PROBLEMS = 20


class _LeadsError(SetupError):
    """A dispatcher holds its lease."""


def _file_id(key: str) -> str:
    return key.rpartition("/")[2]


def _texts(fields: dict[str, str | int]) -> dict[str, str]:
    return {name: str(value) for name, value in fields.items()}
