"""What can be repaired without a risk: from Redis, from parts, or by setting an object aside."""

import time
from collections.abc import Awaitable, Callable, Mapping

from cli.fsck.finding import Finding, Problem, Subject
from cli.fsck.references import last_of, second_of
from shared.errors import NotFoundError
from shared.ledger.commits import Cancellation, commit_key
from shared.ledger.endings import commit_of, event_of
from shared.ledger.file_records import write_file
from shared.ledger.keys import save_key
from shared.ledger.kinds import Kind
from shared.ledger.manifests import to_manifest
from shared.ledger.parts import drop_part, index_of
from shared.ledger.quarantine import keep_copy, set_aside
from shared.ledger.records import encoded
from shared.ledger.tenants import tenant_of
from shared.ledger.webhook_endpoints import save_webhook
from shared.lifecycle import FINAL, TRANSITIONS, Event
from shared.state import BatchRecord, State
from shared.storage import Listed, Storage

#: Younger objects that nothing refers to are left alone.
_MIN_AGE_SECONDS = 86_400.0
_FROM_REDIS = "written again from Redis"


class Repair:
    """Repairs findings, one at a time. Nothing is deleted."""

    def __init__(
        self, state: State, storage: Storage, listed: Callable[[str], Listed | None]
    ) -> None:
        self._state = state
        self._storage = storage
        self._listed = listed
        self._acts: Mapping[Kind, Callable[[Finding], Awaitable[str]]] = {
            Kind.API_KEY: self._api_key,
            Kind.TENANT: self._tenant,
            Kind.WEBHOOK_ENDPOINT: self._webhook,
            Kind.FILE_RECORD: self._file_record,
            Kind.MANIFEST: self._manifest,
            Kind.COMMIT: self._commit,
            Kind.CANCELLATION: self._cancellation,
            Kind.COPY: self._copy,
            Kind.PART: self._part,
            Kind.RESULT: self._result,
            Kind.BATCH_RECORD: self._batch_record,
        }

    async def repair(self, finding: Finding) -> str:
        """What was done; empty if nothing could be done safely."""
        match finding.problem:
            case Problem.UNINDEXED:
                return ""
            case Problem.UNREFERENCED:
                return await self._unreferenced(finding)
            case _:
                act = self._acts.get(Kind(finding.kind))
                try:
                    return "" if act is None else await act(finding)
                except NotFoundError:
                    # Redis does not know it either.
                    return ""

    async def _unreferenced(self, finding: Finding) -> str:
        found = self._listed(finding.key)
        if found is None or time.time() - found.modified_at < _MIN_AGE_SECONDS:
            return ""
        return await self._set_aside(finding)

    async def _set_aside(self, finding: Finding) -> str:
        moved = await set_aside(self._storage, finding.key)
        return "" if moved is None else f"set aside as {moved}"

    async def _api_key(self, finding: Finding) -> str:
        key_id = last_of(finding.key)
        await self._state.keys.find(key_id)
        await keep_copy(self._storage, finding.key)
        await save_key(self._state, self._storage, key_id)
        return _FROM_REDIS

    async def _tenant(self, finding: Finding) -> str:
        settings = (await self._state.tenants.all()).get(tenant_of(finding.key))
        if settings is None:
            return ""
        await keep_copy(self._storage, finding.key)
        await self._storage.put(finding.key, encoded(settings))
        return _FROM_REDIS

    async def _webhook(self, finding: Finding) -> str:
        _, tenant, _ = finding.key.split("/", 2)
        endpoint_id = last_of(finding.key)
        if not await self._state.webhooks.fields(endpoint_id):
            return ""
        await keep_copy(self._storage, finding.key)
        await save_webhook(self._state, self._storage, tenant, endpoint_id)
        return _FROM_REDIS

    async def _file_record(self, finding: Finding) -> str:
        files = await self._state.files.many([last_of(finding.key)])
        for file in files:
            await keep_copy(self._storage, finding.key)
            await write_file(self._storage, file)
        return _FROM_REDIS if files else ""

    async def _manifest(self, finding: Finding) -> str:
        record = await self._record(finding)
        await keep_copy(self._storage, finding.key)
        await self._storage.put(finding.key, encoded(to_manifest(record.fields)))
        return _FROM_REDIS

    async def _commit(self, finding: Finding) -> str:
        record = await self._record(finding)
        if record.status not in FINAL:
            # Whoever ends the batch sets it aside.
            return ""
        event = event_of(record)
        if finding.problem is Problem.DAMAGED:
            event = Event(last_of(finding.key).removeprefix("commit-"))
            if TRANSITIONS[event].target is not record.status:
                return await self._set_aside(finding)
        files = await self._state.files.many(record.file_ids)
        key = commit_key(record.id, event)
        await keep_copy(self._storage, key)
        await self._storage.put(key, encoded(commit_of(record, event, files)))
        return _FROM_REDIS

    async def _batch_record(self, finding: Finding) -> str:
        """Without it, the batch is as its commit has it. It leaves Redis again under a new key."""
        is_back = await self._state.away.bring_back([second_of(finding.key)])
        moved = await self._set_aside(finding)
        return "brought back into Redis as its commit has it" if is_back else moved

    async def _cancellation(self, finding: Finding) -> str:
        at = (await self._record(finding)).number("cancelling_at")
        if not at:
            return await self._set_aside(finding)
        await keep_copy(self._storage, finding.key)
        await self._storage.put(finding.key, encoded(Cancellation(at)))
        return _FROM_REDIS

    async def _copy(self, finding: Finding) -> str:
        return await self._set_aside(finding)

    async def _part(self, finding: Finding) -> str:
        record = await self._record(finding)
        if record.status in FINAL:
            return await self._result(finding)
        index = index_of(finding.key)
        plan = record.fields.get("plan", "")
        async for planned in self._state.slices.some(record.id, plan, [index]):
            if planned.part is None or planned.part.key != finding.key:
                return await self._set_aside(finding)
            outcome = await drop_part(self._state, self._storage, record.id, index, planned.part)
            return {"again": "its rows run again", "lost": "its rows get an error"}.get(outcome, "")
        return ""

    async def _result(self, finding: Finding) -> str:
        if finding.subject is not Subject.FILE:
            return ""
        await self._state.remakes.ask(second_of(finding.key))
        return "the dispatcher was asked to make it again from parts, if they are there"

    async def _record(self, finding: Finding) -> BatchRecord:
        return await self._state.batches.get(second_of(finding.key))
