"""Walks S3 and Redis beside a fleet at work, and looks twice at whatever seems wrong."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from cli.fsck.finding import Finding, Subject
from cli.fsck.index import IndexCheck
from cli.fsck.notebook import Notebook
from cli.fsck.objects import ObjectCheck
from shared.errors import NotFoundError
from shared.ledger.kinds import PREFIXES, Kind, kind_of
from shared.state import State
from shared.storage import Listed, Storage

#: Called with how far the walk is, from 0 to 1.
Progress = Callable[[float], None]

#: Most objects are those of batches, whose ids are digests.
_SHARDS = tuple(f"batches/batch_{digit}" for digit in "0123456789abcdef")


class Walk:
    """Fills a notebook with what does not fit."""

    def __init__(
        self,
        state: State,
        storage: Storage,
        notebook: Notebook,
        *,
        reads_bodies: bool,
        settle_seconds: float,
    ) -> None:
        """What seems wrong is looked at again after `settle_seconds`."""
        self._storage = storage
        self._notebook = notebook
        self._objects = ObjectCheck(state, storage, reads_bodies=reads_bodies)
        self._index = IndexCheck(state, storage, reads_bodies=reads_bodies)
        self._settle_seconds = settle_seconds
        #: How many objects were listed, and how many records were looked up; `quarantine` are the
        #: objects that earlier damage has left there.
        self.counts: Counter[str] = Counter()

    async def run(self, progress: Progress) -> None:
        """Look at everything once, and at what seemed wrong once more."""
        prefixes = [*_SHARDS, *(one for one in PREFIXES if one != "batches/")]
        for number, prefix in enumerate(prefixes):
            async for page in self._storage.pages(prefix):
                self._notebook.note(page)
                self._count(page)
                self._notebook.suspect(await self._objects.check(page))
            progress(0.7 * (number + 1) / len(prefixes))
        async for kind, ids in self._index.subjects():
            self.counts["records"] += len(ids)
            self._notebook.suspect(await self._index.check(kind, ids, self._listed))
        progress(0.9)
        await self._look_again()
        progress(1.0)

    def _count(self, page: list[Listed]) -> None:
        self.counts["objects"] += len(page)
        self.counts["quarantine"] += sum(kind_of(one.key) is Kind.QUARANTINE for one in page)

    async def _look_again(self) -> None:
        """What was only on its way has arrived, or gone, by now."""
        is_first = True
        for page in self._notebook.suspected():
            if is_first:
                await asyncio.sleep(self._settle_seconds)
                is_first = False
            for finding in page:
                if (again := await self._again(finding)) is not None:
                    self._notebook.find(again)

    async def _again(self, finding: Finding) -> Finding | None:
        if finding.subject is Subject.OBJECT:
            found = await self._stored(finding.key)
            findings = [] if found is None else await self._objects.check([found])
        else:
            check: Awaitable[list[Finding]] = self._index.check(
                finding.subject, [finding.about], self._stored
            )
            findings = await check
        same = (one for one in findings if one[:3] == finding[:3])
        return next(same, None)

    async def _listed(self, key: str) -> Listed | None:
        return self._notebook.listed(key)

    async def _stored(self, key: str) -> Listed | None:
        try:
            found = await self._storage.stat(key)
        except NotFoundError:
            return None
        before = self._notebook.listed(key)
        modified_at = 0.0 if before is None else before.modified_at
        return Listed(key, found.etag.strip('"'), found.size, modified_at)
