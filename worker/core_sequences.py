"""Sequences that give vectors, on their way into vLLM's core: many in one message.

vLLM sends each in a message of its own, which a thread of the core takes. That thread lets go of
Python's lock several times for each message, and so does the main thread, with each operation of
torch that it launches: each waits for the other thousands of times in a step. On an H200, a step of
MiniLM took three times as long as in a core to which nobody sends anything.

Sequences of a small batch that begin together are one message, too: the core has all of them after
one turn of its threads.

A sequence of a front stays as the front has encoded it. The replica, whose event loop bounds such
models, says beside it what it has to set, and the core sets it.

These are methods of vLLM's `AsyncMPClient` and `EngineCoreProc`, which are no public interfaces.
"""

import asyncio
from typing import Any, TypeAlias

import structlog

from worker.step_limit import group_in

log = structlog.get_logger()

#: Priority, salt of the cache and headers for our scheduler.
_Fields: TypeAlias = tuple[int, str | None, dict[str, str] | None]
#: A sequence in vLLM's own encoding, and what the core sets in it.
_Sent: TypeAlias = tuple[bytes, _Fields]

#: A sequence waits so long for others, in seconds.
LINGER_SECONDS = 0.005


def gather_sequences(client: Any) -> None:
    """Let this `AsyncLLM` send its core many sequences at a time, if the core can take them."""
    if can_gather(client.vllm_config):
        sender = SequenceSender(client.engine_core)
        client.engine_core.add_request_async = sender.add
        client.engine_core.abort_requests_async = sender.abort


def can_gather(config: Any) -> bool:
    """Whether the core of vLLM's configuration takes many sequences in a message."""
    from worker.step_scheduler import is_ours

    return (
        config.model_config.runner_type == "pooling"
        # Only the thread that takes single messages may use what the core knows of media.
        and not config.model_config.is_multimodal_model
        # With several cores, vLLM chooses one for each sequence.
        and config.parallel_config.data_parallel_size == 1
        and is_ours(config.scheduler_config.scheduler_cls)
    )


def take_sequences() -> None:
    """Let the core that starts in this process take what `gather_sequences` sends."""
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.core import EngineCoreProc
    from vllm.v1.serial_utils import MsgpackDecoder

    # Before the core has a thread that decodes the same type.
    decoder = MsgpackDecoder(EngineCoreRequest)

    def add_sequences(core: Any, client_index: int, sequences: list[_Sent]) -> None:
        """In the core's main thread: add what is in vLLM's own encoding, of this client."""
        for body, fields in sequences:
            request = _decoded(decoder, body, fields)
            request.client_index = client_index
            try:
                core.add_request(*core.preprocess_add_request(request))
            except Exception:  # noqa: BLE001  # the others have done nothing; vLLM logs it
                core._handle_request_preproc_error(request)  # noqa: SLF001  # as its own thread does

    # vLLM calls by name what its client asks for.
    class_: Any = EngineCoreProc
    class_.add_sequences = add_sequences


class EncodedSequence:
    """What a front has encoded. Whoever gives it a seat may take it for vLLM's own request."""

    __slots__ = (
        "body",
        "cache_salt",
        "priority",
        "prompt_token_ids",
        "request_id",
        "trace_headers",
    )
    #: A sequence that gives a vector has none of these.
    sampling_params, mm_features = None, None

    def __init__(
        self, id_: str, body: bytes, *, prompt_tokens: int, trace_headers: dict[str, str] | None
    ) -> None:
        self.request_id, self.body = id_, body
        # Nobody asks for more than how many they are.
        self.prompt_token_ids = range(prompt_tokens)
        self.trace_headers = trace_headers
        #: Those of the body do not count.
        self.priority = 0
        self.cache_salt: str | None = None


class SequenceSender:
    """Belongs to the event loop of a core's client."""

    def __init__(self, core: Any, *, linger: float = LINGER_SECONDS) -> None:
        from vllm.v1.engine import EngineCoreRequest
        from vllm.v1.serial_utils import MsgpackDecoder

        self._core = core
        self._add, self._abort = core.add_request_async, core.abort_requests_async
        self._linger = linger
        self._decoder = MsgpackDecoder(EngineCoreRequest)
        #: What waits to be sent together, by id: by the number of a group of a small batch, or None
        #: for all others.
        self._waiting: dict[int | None, dict[str, _Sent]] = {}
        self._sending: set[asyncio.Task[None]] = set()

    async def add(self, request: Any) -> None:
        """Send it soon; what goes before others, now, or with its whole group.

        Raises EngineDeadError.
        """
        group = group_in(request.trace_headers) if request.priority < 0 else None
        is_alone = request.priority < 0 and group is None
        body = None if is_alone else self._body(request)
        if body is None:
            await self._add(self._whole(request))
            return
        self._core.ensure_alive()
        number = None if group is None else group.number
        if number not in self._waiting:
            self._waiting[number] = {}
            asyncio.get_running_loop().call_later(self._linger, self._send, number)
        together = self._waiting[number]
        together[request.request_id] = body, _fields(request)
        if group is not None and len(together) == group.rows:
            self._send(number)

    async def abort(self, ids: list[str]) -> None:
        """Let the core end these; what it has not been sent, it never gets."""
        await self._abort([id_ for id_ in ids if not self._forget(id_)])

    def _body(self, request: Any) -> bytes | None:
        """None for what has tensors: it refers to further frames of its message."""
        if isinstance(request, EncodedSequence):
            return request.body
        body, *tensors = self._core.encoder.encode(request)
        return None if tensors else bytes(body)

    def _whole(self, request: Any) -> Any:
        if isinstance(request, EncodedSequence):
            return _decoded(self._decoder, request.body, _fields(request))
        return request

    def _forget(self, id_: str) -> bool:
        """Whether it waited; it does no more."""
        return any(one.pop(id_, None) is not None for one in self._waiting.values())

    def _send(self, number: int | None) -> None:
        # A group that was whole has been sent, and those that are cancelled are gone.
        if together := self._waiting.pop(number, None):
            task = asyncio.create_task(self._send_these(together))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send_these(self, sequences: dict[str, _Sent]) -> None:
        index = self._core.client_index
        try:
            await self._core.call_utility_async("add_sequences", index, list(sequences.values()))
        except Exception as error:  # noqa: BLE001  # whatever it is, nobody else waits for them
            from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason

            log.error("engine.not_added", rows=len(sequences), reason=type(error).__name__)  # noqa: TRY400  # as it says
            # As vLLM tells of a sequence that its core cannot take.
            failed = [
                EngineCoreOutput(id_, [], finish_reason=FinishReason.ERROR) for id_ in sequences
            ]
            self._core.outputs_queue.put_nowait(EngineCoreOutputs(outputs=failed))


def _fields(request: Any) -> _Fields:
    return request.priority, request.cache_salt, request.trace_headers


def _decoded(decoder: Any, body: bytes, fields: _Fields) -> Any:
    """What vLLM's decoder makes of a sequence, with what is to be set."""
    request = decoder.decode(body)
    request.priority, request.cache_salt, request.trace_headers = fields
    return request
