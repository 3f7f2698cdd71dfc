"""Restores batches: each from the objects in its folder, or from its line in a pack."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing

import msgspec

from cli.rebuild.batch_reader import BatchReader
from cli.rebuild.damage import Damage
from cli.rebuild.from_s3 import BatchObjects, grouped
from cli.rebuild.report import Report
from shared import crash
from shared.errors import BrokenObjectError, NotFoundError
from shared.ledger.packs import PACKS, PackedBatch, read_pack, read_pack_content
from shared.ledger.records import answered
from shared.lifecycle import FINAL
from shared.state import State
from shared.state.restore import EndedBatch, LiveBatch
from shared.storage import Storage

BATCHES = "batches/"
#: Batch ids are digests: each of these begins a sixteenth of them, and is listed on its own.
_SHARDS = "0123456789abcdef"
#: Batches of one shard that are read and written together.
_GROUP_SIZE = 64
_PACKS_AT_ONCE = 16

Act = Callable[[list[BatchObjects]], Coroutine[None, None, None]]


class BatchRestore:
    """Makes the batches in Redis match S3. Numbers of events and epochs begin at `base`."""

    def __init__(self, state: State, storage: Storage, report: Report, *, base: int) -> None:
        self._state = state
        self._storage = storage
        self._report = report
        self._damage = Damage(storage, report)
        self._reader = BatchReader(state, storage, report, self._damage, base=base)
        self._base = base
        self._shares: dict[str, float] = {}

    async def run(self) -> None:
        """Restore all batches."""
        last = await self._read_packs()
        await self._for_each_group(self._restore)
        # Packs that were being written, whose acceptance was refused during the rebuild.
        await self._read_packs(after=last)
        # Other batches only have their line in a pack in S3.
        while batch_ids := await self._state.rebuild_notes.sample_packed(limit=_GROUP_SIZE):
            await self._restore([BatchObjects(batch_id) for batch_id in batch_ids])
        while keys := await self._state.rebuild_notes.take_rivals(limit=_PACKS_AT_ONCE):
            await asyncio.gather(*map(self._let_go_if_unused, keys))

    async def count(self) -> None:
        """Count what `run` would do, and change nothing."""
        async for page in self._storage.pages(PACKS):
            self._report.counts["packs"] += len(page)
        await self._for_each_group(self._count)

    async def _read_packs(self, *, after: str | None = None) -> str:
        """Keep the manifests and plans of packs in Redis for now: there may be any number.

        With `after`, only later packs are read, and batches that Redis has by now are left out.
        Returns the key of the last pack.
        """
        last = after or ""
        async for listed in self._storage.pages(PACKS):
            page = [one for one in listed if one.key > (after or "")]
            last = max([last, *(one.key for one in page)])
            for first in range(0, len(page), _PACKS_AT_ONCE):
                some = page[first : first + _PACKS_AT_ONCE]
                packs = await asyncio.gather(*(self._read_pack(one.key) for one in some))
                # The oldest first: a batch in several packs counts as the first one has it.
                for listed_pack, batches in zip(some, packs, strict=True):
                    texts = {one.manifest.id: msgspec.json.encode(one).decode() for one in batches}
                    if after is not None:
                        for known in await self._state.batches.statuses(list(texts)):
                            del texts[known]
                    if repeated := await self._state.rebuild_notes.add_packed(texts):
                        await self._note_rivals(listed_pack.key, repeated)
        return last

    async def _note_rivals(self, key: str, batch_ids: Sequence[str]) -> None:
        """Two dispatchers had the same message, and one pack of theirs made the batch."""
        notes = self._state.rebuild_notes
        first = await asyncio.gather(*map(notes.packed, batch_ids))
        manifests = [msgspec.json.decode(text, type=PackedBatch).manifest for text in first if text]
        await notes.add_rivals([key, *(one.pack or one.key for one in manifests)])

    async def _let_go_if_unused(self, key: str) -> None:
        """Let the pack be swept if others made all of its batches, as an older Redis forgets.

        Another batch may read an input in it for as long as that is a file.
        """
        try:
            packed = [one.manifest for one in await read_pack(self._storage, key)]
        except (NotFoundError, BrokenObjectError):
            return
        prefix = f"{key.rpartition('/')[0]}/"
        records = await self._state.batches.many([one.id for one in packed])
        places = [one.fields.get(name, "") for one in records for name in ("key", "pack")]
        is_used = any(place.startswith(prefix) for place in places)
        if len(records) == len(packed) and not is_used:
            until = time.time() + max(one.file_seconds for one in packed)
            await self._state.restore.reserve(prefix, until=int(until))

    async def _read_pack(self, key: str) -> list[PackedBatch]:
        try:
            async with answered(self._storage, key):
                content = await read_pack_content(self._storage, key)
        except NotFoundError:
            # It has been swept since it was listed.
            return []
        except BrokenObjectError as error:
            await self._damage.set_aside(error, "batches that only it knows are lost")
            return []
        if content.broken:
            broken = BrokenObjectError(key, f"{content.broken} of its lines cannot be read")
            outcome = "their batches are lost; it stays where it is for the others"
            await self._damage.keep_copy(broken, outcome)
        return content.batches

    async def _for_each_group(self, act: Act) -> None:
        async with asyncio.TaskGroup() as shards:
            for shard in _SHARDS:
                shards.create_task(self._for_shard(shard, act))

    async def _for_shard(self, shard: str, act: Act) -> None:
        pages = self._storage.pages(f"{BATCHES}batch_{shard}")
        async with aclosing(pages), aclosing(grouped(pages, size=_GROUP_SIZE)) as groups:
            async for group in groups:
                await act(group)
                # Ids are digests, so the last one shows how much has been listed.
                digits = group[-1].batch_id.removeprefix(f"batch_{shard}")[:6]
                self._show_progress(shard, int(digits or "0", 16) / 16 ** len(digits or "0"))
        self._show_progress(shard, 1.0)

    def _show_progress(self, shard: str, share: float) -> None:
        self._shares[shard] = share
        self._report.progress("batches", sum(self._shares.values()) / len(_SHARDS))

    async def _count(self, group: list[BatchObjects]) -> None:
        statuses = await self._state.batches.statuses([found.batch_id for found in group])
        self._report.counts["batches"] += len(group)
        for found in group:
            if statuses.get(found.batch_id) in FINAL:
                self._report.counts["batches_kept"] += 1
            else:
                outcome = "ended" if found.commit else "running"
                self._report.counts[f"batches_{outcome}"] += 1

    async def _restore(self, group: list[BatchObjects]) -> None:
        counts, restore = self._report.counts, self._state.restore
        # Also those that have left an older Redis: their events get numbers that were never used.
        await restore.away.bring_back([found.batch_id for found in group])
        statuses = await self._state.batches.statuses([found.batch_id for found in group])
        counts["batches"] += len(group)
        kept = [found for found in group if statuses.get(found.batch_id) in FINAL]
        others = [found for found in group if found not in kept]
        await self._keep(kept)
        made = await asyncio.gather(*map(self._reader.read, others))
        ended = [batch for batch in made if isinstance(batch, EndedBatch)]
        outcomes = await restore.ended(ended, base=self._base) if ended else []
        for outcome in outcomes:
            counts["batches_ended"] += outcome != "ended"
        crash.point("rebuild.ended_made")
        for batch in made:
            if isinstance(batch, LiveBatch):
                await restore.live(batch, base=self._base)
                counts["batches_running"] += 1
                counts["slices"] += len(batch.slices)
                counts["parts"] += len(batch.parts or {})
                crash.point("rebuild.live_made")
        await self._state.rebuild_notes.drop_packed([found.batch_id for found in group])

    async def _keep(self, group: list[BatchObjects]) -> None:
        """Batches that have ended in Redis too can only lack what a client changed afterwards."""
        if not group:
            return
        self._report.counts["batches_kept"] += len(group)
        await self._state.restore.raise_numbers([found.batch_id for found in group], self._base)
        for found in group:
            if found.commit and found.has_changed_since(found.commit):
                manifest = await self._reader.changed_manifest(found)
                if manifest is not None:
                    await self._state.restore.set_metadata(found.batch_id, manifest.metadata)
