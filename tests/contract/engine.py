"""A substitute for Ray, the lane job and vLLM: claims slices, and answers rows as they request.

Everything around it is real: the claims, the result lines, the parts and their commits.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Any

from shared.errors import TransientError
from shared.input.request_lines import split
from shared.ledger.parts import part_key
from shared.lifecycle import Status
from shared.slices import Claim, new_part, part_label
from shared.state import State
from shared.state.claims import SupersededError
from shared.storage import Storage
from shared.tasks import end
from tests.eventually import wait_until
from worker.asked_again import AskedAgain
from worker.kept_rows import NOTHING, with_known_rows
from worker.outcomes import Outcome, SliceResult
from worker.rows import assemble, nothing
from worker.slice_io import fetch, settle

_PAUSE_SECONDS = 0.02
#: Longer than any test, so that claims need no renewing.
_LEASE_SECONDS = 600.0

#: What a request says to be refused by the engine, as with a prompt that is too long.
REFUSE = "refuse this"
#: What a request says to be kept in the engine until its batch is released, or closes.
WAIT = "wait for it"

Result = tuple[int, bytes]


class ScriptedEngine:
    """Runs in a thread with its own event loop, so that tests may block."""

    def __init__(
        self, make_state: Callable[[], State], make_storage: Callable[[], Storage]
    ) -> None:
        self._make_state = make_state
        self._make_storage = make_storage
        self._released: set[str] = set()
        self._dead: set[str] = set()
        self._rounds = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="engine")

    def start(self) -> None:
        """Claim whatever is ready from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Claim nothing more; returns when it has ended."""
        self._stopping.set()
        self._thread.join()

    def release(self, batch_id: str) -> None:
        """Let the batch's waiting rows be answered."""
        self._released.add(batch_id)

    def kill(self, lane: str) -> None:
        """Let the lane's worker die with all that it runs; its claims stay."""
        self._dead.add(lane)
        # The one under way may not have seen it.
        last = self._rounds + 2
        wait_until(lambda: self._rounds >= last)

    def revive(self, lane: str) -> None:
        """Let the lane have a worker again."""
        self._dead.discard(lane)

    async def _run(self) -> None:
        state, storage = self._make_state(), self._make_storage()
        running: dict[asyncio.Task[None], str] = {}
        try:
            while not self._stopping.is_set():
                dead = frozenset(self._dead)
                await end(*(task for task, lane in running.items() if lane in dead))
                with suppress(TransientError, SupersededError):
                    for claim in await _claims(state, dead):
                        task = asyncio.create_task(self._run_slice(state, storage, claim))
                        running[task] = claim.lane
                        task.add_done_callback(running.pop)
                self._rounds += 1
                await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            await end(*running)
            storage.close()
            await state.close()

    async def _run_slice(self, state: State, storage: Storage, claim: Claim) -> None:
        fetched = await fetch(storage, claim)
        if isinstance(fetched.lines, Outcome):
            await settle(state, storage, claim, SliceResult(fetched.lines, nothing()))
            return
        lines = split(fetched.lines)
        known = with_known_rows(NOTHING, claim, lines)
        left = [position for position in range(len(lines)) if position not in known]
        again = AskedAgain(claim, lines)
        answers = await asyncio.gather(
            *(self._result(state, claim, again, position, lines[position]) for position in left)
        )
        results = [dict(zip(left, answers, strict=True)).get(row) for row in range(len(lines))]
        refused = again.answers
        body = assemble(claim.batch_id, claim.slice, lines, results, known, refused=refused)
        if not body.rows:
            await state.claims.release(claim)
            return
        key = part_key(claim.batch_id, claim.index, claim.epoch)
        part = new_part(key, *body)
        stored = await storage.put_once(key, body.output + body.error, label=part_label(part))
        assert stored is not None
        await state.claims.commit(claim, part._replace(etag=stored.etag))

    async def _result(
        self, state: State, claim: Claim, again: AskedAgain, position: int, line: bytes
    ) -> Result | None:
        """The row's answer once it is taken, or cannot be asked for again."""
        while True:
            answer = await self._answer(state, claim, line)
            if answer is None or again.takes(position, answer):
                return answer

    async def _answer(self, state: State, claim: Claim, line: bytes) -> Result | None:
        """The row's result; None when its batch closed before it had one."""
        request = json.loads(line)
        asked = _asked(request["body"])
        if asked == WAIT and not await self._was_released(state, claim.batch_id):
            return None
        if asked == REFUSE:
            error = {
                "message": "This model's maximum context length is 8 tokens.",
                "type": "invalid_request_error",
                "param": "messages",
                "code": "context_length_exceeded",
            }
            return 400, _json({"error": error})
        return 200, _json(_answered(request["url"], request["body"]["model"], asked))

    async def _was_released(self, state: State, batch_id: str) -> bool:
        while batch_id not in self._released:
            # It is asked often, and Redis may be slow once; without this, the slice would be lost.
            with suppress(TransientError):
                statuses = await state.batches.statuses([batch_id])
                if statuses.get(batch_id) is not Status.IN_PROGRESS:
                    return False
            await asyncio.sleep(_PAUSE_SECONDS)
        return True


async def _claims(state: State, dead: AbstractSet[str]) -> Sequence[Claim]:
    found: list[Claim] = []
    for lane in set(await state.lanes.names()) - dead:
        # The dispatcher opens jobs too, for a Ray that is not there; whichever was first is used.
        job = await state.lanes.open_job(lane, "", "engine")
        found += await state.claims.take(
            lane, job, lease_seconds=_LEASE_SECONDS, slices=100, rows=10_000
        )
    return found


def _asked(body: dict[str, Any]) -> str:
    if messages := body.get("messages"):
        return str(messages[-1]["content"])
    return str(body.get("input") or body.get("prompt") or "")


def _answered(endpoint: str, model: str, asked: str) -> dict[str, Any]:
    common = {"model": model}
    if endpoint == "/v1/embeddings":
        return {
            **common,
            "object": "list",
            "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -0.5]}],
            "usage": {"prompt_tokens": 4, "total_tokens": 4},
        }
    if endpoint == "/v1/chat/completions":
        return {
            **common,
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1_795_000_000,
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": asked.upper()},
                }
            ],
            "usage": {
                "prompt_tokens": 3,
                "completion_tokens": 2,
                "total_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 1},
                "completion_tokens_details": {"reasoning_tokens": 1},
            },
        }
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    if endpoint == "/v1/completions":
        choice = {"index": 0, "finish_reason": "stop", "text": asked.upper()}
        return {**common, "id": "cmpl-1", "object": "text_completion", "created": 1_795_000_000} | {
            "choices": [choice],
            "usage": usage,
        }
    if endpoint == "/v1/responses":
        text = {"type": "output_text", "text": asked.upper(), "annotations": []}
        message = {"id": "msg-1", "type": "message", "role": "assistant", "content": [text]}
        return {**common, "id": "resp-1", "object": "response", "output": [message]}
    return {**common, "usage": usage}


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
