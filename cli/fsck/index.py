"""Redis, each record held against the objects that it should have in S3."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import NamedTuple

from cli.fsck.bodies import digest_differs
from cli.fsck.finding import Finding, Problem, Subject
from shared.errors import NotFoundError
from shared.ledger.additions import addition_key
from shared.ledger.batch_records import record_key
from shared.ledger.commits import cancel_key, commit_key
from shared.ledger.copies import copy_key
from shared.ledger.keys import key_record_key
from shared.ledger.kinds import Kind, kind_of
from shared.ledger.manifests import manifest_key
from shared.ledger.packs import is_pack, pack_of, without_inputs
from shared.ledger.parts import is_broken
from shared.ledger.plans import plan_key
from shared.ledger.tenants import tenant_key
from shared.ledger.webhook_endpoints import webhook_key
from shared.lifecycle import FINAL, TRANSITIONS
from shared.slices import PlannedSlice
from shared.state import BatchRecord, FileRecord, State
from shared.storage import Listed, Storage

#: Looks an object up: in the listing of a walk, or in S3 itself.
Look = Callable[[str], Awaitable[Listed | None]]


class Subjects(NamedTuple):
    """Some of what Redis knows."""

    kind: Subject
    ids: list[str]


class IndexCheck:
    """Finds what Redis has and S3 lacks, and what S3 has otherwise."""

    def __init__(self, state: State, storage: Storage, *, reads_bodies: bool) -> None:
        self._state = state
        self._storage = storage
        self._reads_bodies = reads_bodies

    async def subjects(self) -> AsyncIterator[Subjects]:
        """Everything that Redis knows, some at a time."""
        async for records in self._state.survey.batches():
            yield Subjects(Subject.BATCH, [one.id for one in records])
        async for away in self._state.away.walk():
            yield Subjects(Subject.BATCH, list(away))
        async for files in self._state.survey.files():
            yield Subjects(Subject.FILE, [one.id for one in files])
        async for key_id in self._state.survey.key_ids():
            yield Subjects(Subject.API_KEY, [key_id])
        yield Subjects(Subject.TENANT, list(await self._state.tenants.all()))
        async for tenant, endpoint_id in self._state.restore.webhooks():
            yield Subjects(Subject.WEBHOOK, [f"{tenant}/{endpoint_id}"])

    async def check(self, kind: Subject, ids: list[str], look: Look) -> list[Finding]:
        """What these lack in S3."""
        match kind:
            case Subject.BATCH:
                batches = [self._batch(one, look) for one in await self._state.batches.many(ids)]
                found = [one for findings in batches async for one in findings]
                return found + await self._without_record(ids, look)
            case Subject.FILE:
                files = [self._file(one, look) for one in await self._state.files.many(ids)]
                return [one for findings in files async for one in findings]
            case Subject.API_KEY:
                wanted = [(key_record_key(one), Kind.API_KEY, one) for one in ids]
            case Subject.TENANT:
                wanted = [(tenant_key(one), Kind.TENANT, one) for one in ids]
            case Subject.WEBHOOK:
                wanted = [
                    (webhook_key(*one.split("/", 1)), Kind.WEBHOOK_ENDPOINT, one) for one in ids
                ]
            case _:
                return []
        return [
            Finding(key, of, Problem.MISSING, "Redis has it, and S3 has not", kind, one)
            for key, of, one in wanted
            if await look(key) is None
        ]

    async def _without_record(self, ids: list[str], look: Look) -> list[Finding]:
        """Those that have left Redis, and of which S3 has only the commit."""
        says = "Redis has left the batch's record to it"
        return [
            Finding(key, Kind.BATCH_RECORD, Problem.MISSING, says, Subject.BATCH, one)
            for one, edition in (await self._state.away.among(ids)).items()
            if await look(key := record_key(one, edition)) is None
        ]

    async def _batch(self, record: BatchRecord, look: Look) -> AsyncIterator[Finding]:
        for places, kind, says in _expected(record):
            if not any([await look(place) for place in places]):
                about = Subject.BATCH, record.id
                yield Finding(places[0], kind, Problem.MISSING, says, *about)
        if record.status not in FINAL and "plan" in record.fields:
            async for page in self._state.slices.pages(record.id, record.fields["plan"]):
                for planned in page:
                    async for finding in self._slice(record, planned, look):
                        yield finding

    async def _slice(
        self, record: BatchRecord, planned: PlannedSlice, look: Look
    ) -> AsyncIterator[Finding]:
        if (part := planned.part) is not None:
            says = ""
            if await look(part.key) is None:
                says = "it was committed, and S3 has it no more"
            elif self._reads_bodies and await is_broken(self._storage, part):
                says = "its bytes are not those that were committed"
            if says:
                problem = Problem.DAMAGED if "bytes" in says else Problem.MISSING
                yield Finding(part.key, Kind.PART, problem, says, Subject.BATCH, record.id)
        elif self._reads_bodies and (copy := planned.slice.copy) is not None:
            key = copy_key(record.id, copy.name)
            try:
                body = await self._storage.get(key, start=copy.start, end=copy.end)
            except NotFoundError:
                # Otherwise its lines are read from the input.
                if copy.is_input:
                    says = f"only it has the lines of slice {planned.index}"
                    about = Subject.BATCH, record.id
                    yield Finding(key, Kind.COPY, Problem.MISSING, says, *about)
                return
            if not copy.fits(body):
                says = f"the lines of slice {planned.index} are not those that were written"
                yield Finding(key, Kind.COPY, Problem.DAMAGED, says, Subject.BATCH, record.id)

    async def _file(self, file: FileRecord, look: Look) -> AsyncIterator[Finding]:
        def finding(key: str, kind: Kind, problem: Problem, says: str) -> Finding:
            return Finding(key, kind, problem, says, Subject.FILE, file.id)

        if not file.owned or file.bucket != self._storage.bucket or file.has_expired:
            return
        kind = Kind.FILE if file.has_record else kind_of(file.key) or Kind.RESULT
        found = await look(file.key)
        if found is None:
            yield finding(file.key, kind, Problem.MISSING, "the file has lost its object")
        elif (found.etag, found.size) != (file.etag.strip('"'), file.bytes):
            yield finding(file.key, kind, Problem.DAMAGED, "it is not the object that was stored")
        elif (
            self._reads_bodies
            and kind in (Kind.RESULT, Kind.TABLE)
            and file.sha256
            and (reason := await digest_differs(self._storage, file.key, file.sha256))
        ):
            yield finding(file.key, kind, Problem.DAMAGED, reason)
        if file.has_record and await look(file.record_key) is None:
            says = "a rebuild would not bring the file back"
            yield finding(file.record_key, Kind.FILE_RECORD, Problem.MISSING, says)


def _expected(record: BatchRecord) -> Iterator[tuple[list[str], Kind, str]]:
    """The objects that the batch should have, each at one of some places."""
    manifests, key = [manifest_key(record.id)], record.fields["key"]
    if pack := pack_of(record.fields):
        manifests += [pack, without_inputs(pack)]
    yield manifests, Kind.MANIFEST, "S3 has no manifest of the batch"
    if "cancelling_at" in record.fields:
        says = "a rebuild would not cancel the batch"
        yield [cancel_key(record.id)], Kind.CANCELLATION, says
    if record.status in FINAL:
        events = [event for event, row in TRANSITIONS.items() if row.target is record.status]
        commits = [commit_key(record.id, event) for event in events]
        yield commits, Kind.COMMIT, f"no commit says that the batch is {record.status}"
    elif "plan" in record.fields and not is_pack(key):
        says = "a rebuild would run all rows of the batch again"
        yield [plan_key(record.id)], Kind.PLAN, says
    if record.status not in FINAL:
        for number in range(record.number("additions")):
            says = f"only it has the rows of addition {number}"
            yield [addition_key(record.id, number)], Kind.ADDITION, says
