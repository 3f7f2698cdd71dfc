"""The steps of a rebuild, in order. Each may be repeated; memory does not grow with S3."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import stamina

from cli.rebuild.batches import BatchRestore
from cli.rebuild.damage import Damage
from cli.rebuild.files import FileRestore
from cli.rebuild.pipelines import PipelineRestore
from cli.rebuild.report import Damaged, Progress, Report
from shared import crash
from shared.errors import BrokenObjectError, NotFoundError, SetupError
from shared.ledger.keys import KEYS, read_key, to_record
from shared.ledger.records import answered
from shared.ledger.tenants import TENANTS, read_settings, tenant_of
from shared.ledger.webhook_endpoints import WEBHOOKS, read_webhook
from shared.state import State
from shared.storage import Listed, Storage

#: Each rebuild takes a number that none before it had, so that it gives out new numbers only.
NUMBERS = "rebuilds/"
#: Numbers of events and epochs restart at a multiple of this.
STRIDE = 1_000_000
_OBJECTS_AT_ONCE = 100
#: Longer than any dispatcher can hold a lease that it cannot renew.
_LEASE_SECONDS = 60.0


class Rebuild:
    """Makes Redis match S3 wherever they differ."""

    def __init__(self, state: State, storage: Storage, *, progress: Progress) -> None:
        self._state = state
        self._storage = storage
        self._report = Report(progress)
        self._damage = Damage(storage, self._report)

    @property
    def counts(self) -> Counter[str]:
        """How many objects of each kind there were, and what became of them."""
        return self._report.counts

    @property
    def problems(self) -> list[str]:
        """The first batches that S3 has too little of, each with the reason."""
        return self._report.problems

    @property
    def damaged(self) -> list[Damaged]:
        """The first damaged objects; `counts` says how many there are."""
        return self._report.damaged

    async def run(self) -> None:
        """Run all steps. Raises SetupError while a dispatcher leads."""
        restore = self._state.restore
        base = STRIDE * await self._take_number()
        batches = BatchRestore(self._state, self._storage, self._report, base=base)
        files = FileRestore(self._state, self._storage, self._report)
        await restore.begin()
        crash.point("rebuild.begun")
        await self._wait_until_nobody_leads()
        # Lane jobs lose their claims.
        await restore.take_lanes()
        await self._state.rebuild_notes.clear()
        await self._restore_keys()
        await self._restore_tenants()
        await self._restore_webhooks()
        await self._pipelines().run()
        await batches.run()
        crash.point("rebuild.batches_done")
        await files.run()
        await files.delete_deleted()
        await self._state.rebuild_notes.clear()
        crash.point("rebuild.files_done")
        await restore.end()

    async def look(self) -> None:
        """Count what `run` would do, and change nothing."""
        await BatchRestore(self._state, self._storage, self._report, base=0).count()
        await FileRestore(self._state, self._storage, self._report).count()
        await self._pipelines().count()
        for name, prefix in (("keys", KEYS), ("tenants", TENANTS), ("webhook_endpoints", WEBHOOKS)):
            async for page in self._storage.pages(prefix):
                self.counts[name] += len(page)

    def _pipelines(self) -> PipelineRestore:
        return PipelineRestore(self._state, self._storage, self._report, self._damage)

    async def _take_number(self) -> int:
        """One more than any rebuild of this bucket has had."""
        while True:
            names = [key.removeprefix(NUMBERS) for key in await self._storage.keys(NUMBERS)]
            known = [int(name) for name in names if name.isdigit()]
            number = max(known, default=0) + 1
            if await self._storage.create(f"{NUMBERS}{number:06d}", b""):
                return number

    async def _wait_until_nobody_leads(self) -> None:
        async for attempt in stamina.retry_context(
            on=_LeadsError, attempts=None, timeout=_LEASE_SECONDS, wait_initial=0.2, wait_max=1
        ):
            with attempt:
                if await self._state.restore.has_leader():
                    raise _LeadsError(
                        "A dispatcher still leads after a minute. Stop the dispatchers, and run "
                        "this again."
                    )

    async def _restore_keys(self) -> None:
        async for page in self._storage.pages(KEYS):
            async for key, body in self._bodies(page):
                try:
                    kept = read_key(key, _whole(body))
                except BrokenObjectError as error:
                    await self._damage.set_aside(error, "the API key works only if Redis knows it")
                    continue
                is_new = await self._state.restore.key(kept.id, kept.digest, to_record(kept))
                self.counts["keys_made"] += is_new
                self.counts["keys"] += 1
        self._report.progress("keys", 1.0)

    async def _restore_tenants(self) -> None:
        found, damaged = {}, set()
        async for page in self._storage.pages(TENANTS):
            async for key, body in self._bodies(page):
                try:
                    found[tenant_of(key)] = read_settings(key, _whole(body))
                except BrokenObjectError as error:
                    damaged.add(tenant_of(key))
                    await self._damage.set_aside(
                        error, "the tenant's settings are what Redis knows"
                    )
        await self._state.restore.tenants(found, kept=damaged)
        self.counts["tenants"] += len(found)

    async def _restore_webhooks(self) -> None:
        kept = set()
        async for page in self._storage.pages(WEBHOOKS):
            async for key, body in self._bodies(page):
                _, tenant, name = key.split("/", 2)
                endpoint_id = name.removesuffix(".json")
                # One that is damaged stays as Redis has it.
                kept.add(endpoint_id)
                try:
                    fields = read_webhook(key, _whole(body))
                except BrokenObjectError as error:
                    await self._damage.set_aside(error, "the endpoint is what Redis knows")
                    continue
                is_new = await self._state.restore.webhook(tenant, endpoint_id, fields)
                self.counts["webhook_endpoints_made"] += is_new
                self.counts["webhook_endpoints"] += 1
        async for tenant, endpoint_id in self._state.restore.webhooks():
            if endpoint_id not in kept:
                await self._state.restore.delete_webhook(tenant, endpoint_id)
                self.counts["webhook_endpoints_deleted"] += 1
        self._report.progress("webhooks", 1.0)

    async def _bodies(
        self, page: list[Listed]
    ) -> AsyncIterator[tuple[str, bytes | BrokenObjectError]]:
        """The keys of the objects with their contents, or why they cannot be read."""
        for first in range(0, len(page), _OBJECTS_AT_ONCE):
            keys = [listed.key for listed in page[first : first + _OBJECTS_AT_ONCE]]
            bodies = await asyncio.gather(*map(self._body, keys))
            for key, body in zip(keys, bodies, strict=True):
                if body is not None:
                    yield key, body

    async def _body(self, key: str) -> bytes | BrokenObjectError | None:
        """None if it has been removed since it was listed."""
        try:
            async with answered(self._storage, key):
                return await self._storage.get(key)
        except NotFoundError:
            return None
        except BrokenObjectError as error:
            return error


def _whole(body: bytes | BrokenObjectError) -> bytes:
    if isinstance(body, BrokenObjectError):
        raise body
    return body


class _LeadsError(SetupError):
    """A dispatcher holds its lease."""
