"""Messages from our own gateway: a batch has a manifest and a record, and needs a plan."""

import json

import structlog

from shared.bus.messages import Reason, RejectedError
from shared.errors import BrokenObjectError, NotFoundError
from shared.ledger.manifests import Manifest
from shared.ledger.packs import read_manifest
from shared.state import State
from shared.storage import Storage
from shared.submission.accept import accept

log = structlog.get_logger()


class ReadyBatches:
    """Wakes the dispatcher for batches that came by HTTP."""

    def __init__(self, state: State, storage: Storage) -> None:
        self._state = state
        self._storage = storage

    async def take(self, body: bytes) -> None:
        """Wake the dispatcher. Raises RejectedError if there is no such batch."""
        try:
            message = json.loads(body)
            batch_id, pack = str(message["batch_id"]), str(message.get("pack", ""))
        except (ValueError, KeyError, TypeError):
            reason = Reason("schema_invalid", "The body names no batch.", "batch_id")
            raise RejectedError([reason], is_dead=True) from None
        if not await self._state.batches.exists(batch_id):
            # The record was lost; the manifest is enough to make it again.
            if (manifest := await find_manifest(self._storage, batch_id, pack)) is None:
                reason = Reason("unknown_batch", f"There is no batch '{batch_id}'.", "batch_id")
                raise RejectedError([reason], is_dead=True)
            await accept(self._state, self._storage, manifest)
        await self._state.ring("dispatcher")


async def find_manifest(storage: Storage, batch_id: str, pack: str = "") -> Manifest | None:
    """The batch's manifest, which S3 keeps forever; None if there is none, or a damaged one."""
    try:
        return await read_manifest(storage, batch_id, pack=pack)
    except NotFoundError:
        return None
    except BrokenObjectError as error:
        log.error("manifest.broken", batch_id=batch_id, key=error.key, reason=error.reason)  # noqa: TRY400  # the reason says it all
        return None
