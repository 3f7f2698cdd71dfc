"""What a front process has in place of vLLM's core: the replica, which has the core.

vLLM's `AsyncLLM` calls these methods of its own core client, which is no public interface.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import msgspec

from worker.front_link import Abort, Add, Message

#: The number of the row on whose behalf the running task calls vLLM.
row_number: ContextVar[int | None] = ContextVar("row_number", default=None)


class RemoteCore:
    """Belongs to the event loop of the front."""

    def __init__(
        self, send: Callable[[Message], None], tasks: tuple[Any, ...], *, at_a_time: int | None
    ) -> None:
        """`tasks` are those that the core says that it supports.

        vLLM gets outputs of so many sequences at a time, each of them a sequence's only one, or all
        outputs of a message.
        """
        from vllm.v1.engine import EngineCoreOutputs
        from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

        self._send = send
        self._tasks = tasks
        self._encoder = MsgpackEncoder()
        self._decoder = MsgpackDecoder(EngineCoreOutputs)
        self._at_a_time = at_a_time
        self._outputs = deque[Any]()
        self._has_some = asyncio.Event()
        #: A front whose engine is dead ends with its replica, and says nothing before.
        self.resources = SimpleNamespace(engine_dead=False)

    def take(self, frames: Sequence[bytes], *, is_first: bool = False) -> None:
        """The core's outputs have come."""
        outputs = self._decoder.decode(frames)
        if self._at_a_time is None:
            self._outputs.append(outputs)
        elif is_first:
            self._outputs.appendleft(outputs)
        else:
            those, few = outputs.outputs, self._at_a_time
            self._outputs.extend(
                msgspec.structs.replace(outputs, outputs=those[at : at + few])
                for at in range(0, len(those), few)
            )
        self._has_some.set()

    async def get_output_async(self) -> Any:
        if self._outputs:
            # vLLM asks for the next ones at once. Meanwhile, the rows of the last ones go on.
            await asyncio.sleep(0)
        while not self._outputs:
            self._has_some.clear()
            await self._has_some.wait()
        return self._outputs.popleft()

    async def get_supported_tasks_async(self) -> tuple[Any, ...]:
        return self._tasks

    async def add_request_async(self, request: Any) -> None:
        """Hand a sequence over; it enters the core as soon as it has a seat."""
        number = row_number.get()
        assert number is not None  # noqa: S101  # a front runs nothing else
        encoded: Any = self._encoder.encode(request)
        frames = [bytes(frame) for frame in encoded]
        prompt_tokens = len(request.prompt_token_ids or ())
        self._send(Add(number, request.request_id, frames, prompt_tokens, request.trace_headers))

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        if request_ids:
            self._send(Abort(request_ids))

    async def add_lora_async(self, _: Any) -> bool:
        """The replica has given the core its adapters, in the same order."""
        return True

    def shutdown(self, timeout: float | None = None) -> None:
        """There is nothing to end."""
