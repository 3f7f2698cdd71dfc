"""Whether an object still has the bytes that were written, by the checksum that it carries."""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

from shared.errors import BrokenObjectError
from shared.ledger.additions import read_addition
from shared.ledger.batch_records import read_batch_record
from shared.ledger.commits import Cancellation, LaneFailure, read_commit
from shared.ledger.datasets import read_dataset
from shared.ledger.file_records import read_file
from shared.ledger.keys import read_key
from shared.ledger.kinds import Kind
from shared.ledger.packs import read_manifest, read_pack
from shared.ledger.pipelines import (
    Closing,
    Decided,
    Ended,
    StoredPipeline,
    read_handover,
    read_tokenizer,
)
from shared.ledger.plans import read_plan
from shared.ledger.records import answered, read_record
from shared.ledger.tenants import read_settings
from shared.ledger.webhook_endpoints import read_webhook
from shared.slices import labelled_part
from shared.storage import Listed, Storage

Check = Callable[[Storage, Listed], Awaitable[object]]


async def damage(storage: Storage, kind: Kind, found: Listed) -> str:
    """Why the object is not what was written; empty if it is. Raises NotFoundError."""
    if kind not in _CHECKS:
        return ""
    try:
        async with answered(storage, found.key):
            await _CHECKS[kind](storage, found)
    except BrokenObjectError as error:
        return error.reason
    return ""


async def digest_differs(storage: Storage, key: str, sha256: str) -> str:
    """Why an object does not have this SHA-256; empty if it has. Raises NotFoundError."""
    digest = hashlib.sha256()
    try:
        async with answered(storage, key), aclosing(storage.stream(key)) as chunks:
            async for chunk in chunks:
                digest.update(chunk)
    except BrokenObjectError as error:
        return error.reason
    is_same = digest.hexdigest() == sha256
    return "" if is_same else "its bytes are not those that were written"


async def _part(storage: Storage, found: Listed) -> None:
    label, body = await storage.label(found.key), await storage.get(found.key)
    try:
        part = labelled_part(found.key, found.etag, len(body), label)
    except ValueError as error:
        raise BrokenObjectError(found.key, str(error)) from error
    if not part.fits(body):
        raise BrokenObjectError(found.key, "its bytes are not those that were written")


async def _commit(storage: Storage, found: Listed) -> None:
    _, batch_id, name = found.key.split("/")
    await read_commit(storage, batch_id, name.removeprefix("commit-").removesuffix(".json"))


async def _batch_record(storage: Storage, found: Listed) -> None:
    _, batch_id, name = found.key.split("/")
    edition = int(name.removeprefix("record-").removesuffix(".json"))
    await read_batch_record(storage, batch_id, edition)


async def _pipeline(storage: Storage, found: Listed) -> None:
    name = found.key.rpartition("/")[2].removesuffix(".json")
    kinds: Mapping[str, type[Any]] = {"pipeline": StoredPipeline, "ending": Decided, "end": Ended}
    await read_record(storage, found.key, kinds.get(name, Closing))


async def _handover(storage: Storage, found: Listed) -> None:
    _, pipeline_id, _, edge, name = found.key.split("/")
    number = int(name.removesuffix(".jsonl"))
    await read_handover(storage, pipeline_id, int(edge), number)


async def _tokenizer(storage: Storage, found: Listed) -> None:
    _, pipeline_id, _, name = found.key.split("/")
    digest = name.removeprefix("tokenizer-").removesuffix(".json")
    await read_tokenizer(storage, pipeline_id, digest)


def _batch_id(found: Listed) -> str:
    return found.key.split("/")[1]


async def _api_key(storage: Storage, found: Listed) -> None:
    read_key(found.key, await storage.get(found.key))


async def _tenant(storage: Storage, found: Listed) -> None:
    read_settings(found.key, await storage.get(found.key))


async def _webhook(storage: Storage, found: Listed) -> None:
    read_webhook(found.key, await storage.get(found.key))


def _record(kind: type[Any]) -> Check:
    return lambda storage, found: read_record(storage, found.key, kind)


_CHECKS: Mapping[Kind, Check] = {
    Kind.API_KEY: _api_key,
    Kind.TENANT: _tenant,
    Kind.WEBHOOK_ENDPOINT: _webhook,
    Kind.FILE_RECORD: lambda storage, found: read_file(storage, found.key.removesuffix(".json")),
    Kind.MANIFEST: lambda storage, found: read_manifest(storage, _batch_id(found)),
    Kind.PACK: lambda storage, found: read_pack(storage, found.key),
    Kind.ADDITION: lambda storage, found: read_addition(storage, found.key),
    Kind.PLAN: lambda storage, found: read_plan(storage, _batch_id(found)),
    Kind.DATASET: lambda storage, found: read_dataset(storage, found.key),
    Kind.CANCELLATION: _record(Cancellation),
    Kind.LANE_FAILURE: _record(LaneFailure),
    Kind.PIPELINE: _pipeline,
    Kind.HANDOVER: _handover,
    Kind.TOKENIZER: _tokenizer,
    Kind.PART: _part,
    Kind.COMMIT: _commit,
    Kind.BATCH_RECORD: _batch_record,
}
