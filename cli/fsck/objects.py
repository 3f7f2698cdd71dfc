"""Objects of S3, each held against what Redis knows of it."""

import asyncio
import time
from collections.abc import Sequence

from cli.fsck.bodies import damage, digest_differs
from cli.fsck.finding import Finding, Problem, Subject
from cli.fsck.references import YOUNG_SECONDS, Facts, judge, last_of, members, second_of
from shared.errors import BrokenObjectError, NotFoundError
from shared.ledger.kinds import Kind, kind_of
from shared.ledger.packs import read_pack_content
from shared.state import State
from shared.storage import Listed, Storage

_BODIES_AT_ONCE = 16


class ObjectCheck:
    """Finds objects that are damaged, or that Redis does not know."""

    def __init__(self, state: State, storage: Storage, *, reads_bodies: bool) -> None:
        self._state = state
        self._storage = storage
        self._reads_bodies = reads_bodies

    async def check(self, page: Sequence[Listed]) -> list[Finding]:
        """What is wrong with these objects. Those that are not a fleet's are left alone."""
        ours = [(one, kind) for one in page if (kind := kind_of(one.key)) is not None]
        facts = await self._facts([one.key for one, _ in ours])
        found = [judge(one, kind, facts, now=time.time()) for one, kind in ours]
        if self._reads_bodies:
            room = asyncio.Semaphore(_BODIES_AT_ONCE)
            found += await asyncio.gather(*(self._read(room, *one, facts) for one in ours))
        return [one for one in found if one is not None]

    async def _read(
        self, room: asyncio.Semaphore, one: Listed, kind: Kind, facts: Facts
    ) -> Finding | None:
        """By the object's bytes."""
        async with room:
            try:
                if reason := await self._reason(one, kind, facts):
                    return Finding(one.key, kind, Problem.DAMAGED, reason, Subject.OBJECT)
                if kind is Kind.PACK and time.time() - one.modified_at > YOUNG_SECONDS:
                    return await self._unindexed(one, facts)
            except NotFoundError:
                # It has been removed since it was listed.
                return None
        return None

    async def _reason(self, one: Listed, kind: Kind, facts: Facts) -> str:
        """Why the object is damaged; empty if it is not. Raises NotFoundError."""
        if reason := await damage(self._storage, kind, one):
            return reason
        file = facts.files.get(last_of(one.key)) if kind is Kind.FILE else None
        if file is None or not file.sha256:
            return ""
        return await digest_differs(self._storage, one.key, file.sha256)

    async def _unindexed(self, one: Listed, facts: Facts) -> Finding | None:
        """A pack with batches that Redis does not know, and that nothing will remove."""
        if members(one.key) & facts.swept:
            return None
        try:
            content = await read_pack_content(self._storage, one.key)
        except BrokenObjectError:
            return None
        ids = [batch.manifest.id for batch in content.batches]
        unknown = sorted(set(ids) - (await self._state.batches.statuses(ids)).keys())
        if not unknown:
            return None
        says = f"Redis does not know {len(unknown)} of its batches, as {unknown[0]}"
        return Finding(one.key, Kind.PACK, Problem.UNINDEXED, says, Subject.OBJECT)

    async def _facts(self, keys: Sequence[str]) -> Facts:
        state, survey = self._state, self._state.survey
        of: dict[str, list[str]] = {}
        for key in keys:
            of.setdefault(key.partition("/")[0], []).append(key)
        records = await state.batches.many(
            sorted({second_of(key) for key in of.get("batches", ())})
        )
        file_ids = {last_of(key) for key in of.get("files", ())}
        file_ids |= {file_id for record in records for file_id in record.file_ids}
        endpoints = [last_of(key) for key in of.get("webhooks", ())]
        return Facts(
            batches={one.id: one for one in records},
            files={one.id: one for one in await state.files.many(sorted(file_ids))},
            api_keys=await survey.known_keys([last_of(key) for key in of.get("keys", ())]),
            tenants=set(await state.tenants.all()) if "tenants" in of else set(),
            webhooks={one for one in endpoints if await state.webhooks.fields(one)},
            pipelines={
                one.id
                for one in await state.pipelines.many(
                    sorted({second_of(key) for key in of.get("pipelines", ())})
                )
            },
            uploads=await survey.known_uploads([second_of(key) for key in of.get("uploads", ())]),
            read=await survey.are_read(sorted(file_ids)),
            swept=await survey.will_be_swept(sorted({m for key in keys for m in members(key)})),
        )
