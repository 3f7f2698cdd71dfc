"""A fleet's stores with batches of every kind, for commands that repair them."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from redis.asyncio import Redis

from cli import servers
from dispatcher.finaliser import Finaliser
from dispatcher.packing import Packer
from shared import ids
from shared.catalog import Catalog
from shared.catalog_file import load_catalog
from shared.input.validation import Limits
from shared.input_places import InputPlaces
from shared.ledger.file_records import write_file
from shared.ledger.manifests import Manifest
from shared.ledger.pipelines import StoredPipeline, write_tokenizer
from shared.pipeline.declaration import Declaration
from shared.pipeline.plan import check
from shared.pipeline.table import rows_table
from shared.slices import Claim
from shared.slicing import SliceLimits
from shared.state import FileRecord, State
from shared.storage import Storage
from shared.submission.accept import Accepted, accept
from shared.submission.additions import Added, Additions, KnownAnswers
from shared.submission.admission import NewBatchQuota
from shared.submission.datasets import Datasets
from shared.submission.opening import open_source
from shared.submission.pipelines import Pipeline, accept_pipeline
from shared.submission.together import accept_together
from tests.integration.dispatcher.conftest import (
    CATALOG,
    CHAT,
    ROWS_A_SLICE,
    BatchYard,
    a_planner,
    bad,
    good,
    lines,
)
from tests.manifests import a_manifest, inline, today

TENANT = "acme"
A_CALL = {
    "call": {
        "endpoint": CHAT,
        "template": {"model": "m", "messages": [{"role": "user", "content": "{{ text }}"}]},
    }
}
#: What no rebuild can know, or need know: of the moment, or numbers that go on higher.
_PASSING = {"sequence", "progress_ms", "plan", "started_at", "first_result_at"}


def yards_in(folder: Path, state: State, storage: Storage) -> "Yards":
    """Stores with nothing in them yet; the catalog is written into the folder."""
    (folder / "catalog.yaml").write_text(CATALOG)
    catalog = load_catalog(folder / "catalog.yaml")
    planner = a_planner(state, storage, catalog)
    finaliser = Finaliser(state, storage, output_seconds=3600)
    return Yards(BatchYard(state, storage, planner, finaliser), catalog)


@dataclass
class Yards:
    """A fleet's stores, and what its batches were like before Redis was lost."""

    yard: BatchYard
    catalog: Catalog
    claims: list[Claim] = field(default_factory=list)
    #: What is ready belongs to whoever has just made it so.
    _claiming: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def state(self) -> State:
        return self.yard.state

    @property
    def storage(self) -> Storage:
        return self.yard.storage

    async def submit(
        self, name: str, rows: int, *, body: bytes | None = None, **changes: Any
    ) -> str:
        """A batch with its manifest, as the gateway makes it."""
        manifest = await self.asked(name, rows, body=body, **changes)
        return (await accept(self.state, self.storage, manifest)).batch_id

    async def submit_together(self, *names: str, rows: int = 9) -> list[str]:
        """Batches whose manifests share one object, as the gateway makes those of one moment."""
        manifests = [await self.asked(name, rows) for name in names]
        outcomes = await accept_together(self.state, self.storage, manifests)
        assert [one.is_duplicate for one in outcomes if isinstance(one, Accepted)] == [
            False for _ in names
        ]
        return [manifest.id for manifest in manifests]

    async def asked(
        self, name: str, rows: int, *, body: bytes | None = None, **changes: Any
    ) -> Manifest:
        """What a client asks for, with its input in S3."""
        file = await self.upload(f"file-{name:_<22}", body or lines(rows))
        return a_manifest(
            name,
            fingerprint=f"print of {name}",
            input_file_id=file.id,
            bucket=file.bucket,
            key=file.key,
            etag=file.etag,
            size=file.bytes,
            **today(),
            **changes,
        )

    async def upload(self, file_id: str, body: bytes) -> FileRecord:
        """A file with its record, as the gateway keeps it."""
        key = f"files/{TENANT}/{file_id}"
        stored = await self.storage.put(key, body)
        file = FileRecord(
            id=file_id,
            tenant=TENANT,
            bytes=stored.size,
            created_at=int(time.time()) - 600,
            expires_at=None,
            filename="rows.jsonl",
            purpose="batch",
            bucket=self.storage.bucket,
            key=key,
            etag=stored.etag,
        )
        await write_file(self.storage, file)
        await self.state.files.create(file)
        return file

    async def open(self, name: str, *, is_started: bool = True, **changes: Any) -> str:
        """An open batch, which takes rows once it is started."""
        batch_id = ids.batch_id(TENANT, name)
        source = open_source(self.storage.bucket, TENANT, batch_id, "m")
        manifest = a_manifest(name, **{**today(), **source, **changes})
        assert (await accept(self.state, self.storage, manifest)).batch_id == batch_id
        if is_started:
            await self.yard.planner.plan(batch_id)
        return batch_id

    async def pipeline(
        self,
        name: str,
        *stages: dict[str, Any],
        tokenizers: Mapping[int, bytes] | None = None,
        output: dict[str, Any] | None = None,
        rows: int = 9,
    ) -> Pipeline:
        """A pipeline over a table of so many rows, as the gateway makes it."""
        pipeline_id = ids.pipeline_id(TENANT, name)
        table = b"".join(b'{"id": "r%d", "text": "t%d"}\n' % (n, n // 2) for n in range(rows))
        file = await self.upload(ids.pipeline_file_id(name, "input"), table)
        declared = {
            "input": {
                "file_id": file.id,
                "columns": ["text"],
                "custom_id": "id",
                "format": "jsonl",
            },
            "stages": list(stages) or [A_CALL],
            **({} if output is None else {"output": output}),
        }
        declaration = Declaration.model_validate(declared)
        endpoints = {"m": {stage["call"]["endpoint"] for stage in stages if "call" in stage}}
        columns = check(declaration, {"m": endpoints["m"] or {CHAT}})
        datasets = Datasets(self.state, self.storage, InputPlaces("", "", {}))
        pinned = await datasets.pinned(TENANT, declaration.input.dataset())
        now = int(time.time())
        stored = StoredPipeline(
            id=pipeline_id,
            tenant=TENANT,
            fingerprint=name,
            created_at=now,
            expires_at=now + 86_400,
            declaration=msgspec.Raw(
                declaration.model_dump_json(by_alias=True, exclude_unset=True).encode()
            ),
            pinned=msgspec.Raw(msgspec.json.encode(pinned)),
            joined={
                number: msgspec.Raw(
                    msgspec.json.encode(await datasets.pinned(TENANT, stage.table.dataset()))
                )
                for number, stage in enumerate(declaration.stages)
                if stage.table is not None
            },
            tokenizers={
                number: await write_tokenizer(self.storage, pipeline_id, body)
                for number, body in (tokenizers or {}).items()
            },
            output=rows_table(declaration, columns, [f"s3://{self.storage.bucket}/inbox/"]),
        )
        return await accept_pipeline(self.state, self.storage, self.catalog, stored)

    def additions(self, answers: KnownAnswers | None = None) -> Additions:
        """What adds rows to open batches, as a gateway has it."""
        return Additions(
            self.state,
            self.storage,
            self.catalog,
            limits=Limits(),
            slice_limits=SliceLimits(rows=ROWS_A_SLICE),
            max_input_bytes=1_000_000,
            quota=NewBatchQuota(self.catalog, 1_000, 100_000, 1_000_000),
            answers=answers,
        )

    async def add(self, batch_id: str, body: bytes) -> Added:
        """Rows for an open batch."""
        return await self.additions().add(await self.state.batches.get(batch_id), body)

    async def start(self, name: str, rows: int, **changes: Any) -> str:
        """A batch that runs."""
        batch_id = await self.submit(name, rows, **changes)
        await self.yard.planner.plan(batch_id)
        return batch_id

    async def complete(self, name: str, rows: int = 3, **changes: Any) -> str:
        """A batch that has run to its end; its second row failed."""
        batch_id = await self.start(name, rows, **changes)
        async with self._claiming:
            claims = await self.yard.claim(batch_id)
        for claim in claims:
            results = [bad() if row == 1 else good(f"{row}") for row in claim.slice.row_numbers]
            await self.yard.commit(claim, results)
        await self.yard.finaliser.finish(batch_id)
        return batch_id

    async def commit_some(self, batch_id: str, count: int) -> None:
        """Commit the first slices; the others stay claimed."""
        claims = await self.yard.claim(batch_id)
        for claim in claims[:count]:
            await self.yard.commit(claim, [good(f"{row}") for row in claim.slice.row_numbers])
        self.claims += claims[count:]

    async def hear(self) -> list[dict[str, Any]]:
        """The events that wait to be published, which are then gone."""
        heard = []
        while entries := await self.state.outbox.read("events", limit=500, wait_seconds=0.001):
            heard += [{**entry.fields, "batch": entry.snapshot()["id"]} for entry in entries]
            await self.state.outbox.remove("events", [entry.id for entry in entries])
        return heard

    async def record(self, batch_id: str) -> dict[str, str]:
        """What HTTP and the fleet see of the batch."""
        fields = (await self.state.batches.get(batch_id)).fields
        return {
            name: text
            for name, text in fields.items()
            # When the batch last had its turn is forgotten with the index.
            if name not in _PASSING and not name.startswith("claimed_at:")
        }


async def pack_up(yards: Yards, *names: str, rows: int = 9) -> list[str]:
    """Batches of `rows` rows that came together by the bus, as the intake makes them."""
    packer = Packer(
        yards.state,
        yards.storage,
        quota=NewBatchQuota(yards.catalog, 1_000, 100_000, 1_000_000),
        planner=yards.yard.planner,
    )
    made = [inline(name, lines(rows), fingerprint=f"print of {name}") for name in names]
    await asyncio.gather(*map(packer.make, made))
    return [one.manifest.id for one in made]


async def empty(redis_server: servers.Redis) -> None:
    redis: Redis[str] = Redis.from_url(redis_server.url)
    await redis.flushall()
    await redis.aclose()
