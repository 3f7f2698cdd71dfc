"""A front process: renders, tokenizes, detokenizes and builds the bodies of an engine's rows.

It is vLLM's own front (`AsyncLLM` and its OpenAI layer) without a core of its own. The replica that
it belongs to has the core, the queue and the seats; it ends with the replica.
"""

import asyncio
import os
import pickle
import socket
import time
from types import SimpleNamespace
from typing import Any

import structlog

from shared.interpreter import prepare_to_serve
from shared.openai.row_rules import RowRules
from worker.catalog_adapters import load_each_alone
from worker.engine_bounds import refuse_killers
from worker.engine_front import keep_environment
from worker.engine_results import SERVER_ERROR, failure
from worker.few_at_a_time import FEW
from worker.front_core import RemoteCore, row_number
from worker.front_link import Answer, Cancel, Link, Message, Outputs, Ping, Pong, Ready, Row, Setup
from worker.front_rows import TEXTS_AT_A_TIME, VECTORS_AT_A_TIME, FrontRows
from worker.media_connector import register_media_connector
from worker.openai_layer import OpenAILayer
from worker.row_requests import Request, RowAnswer, answer_of, request_of
from worker.row_rules import rules_from

log = structlog.get_logger()


class Front:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._setup: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._link = Link(self._take, _end)
        self._core: RemoteCore | None = None
        self._openai: OpenAILayer | None = None
        self._rules = rules_from(os.environ)
        self._rows: dict[int, asyncio.Task[None]] = {}
        self._waiting = FrontRows(TEXTS_AT_A_TIME)
        self._is_beginning = False

    async def run(self, replica: socket.socket) -> None:
        """Take rows until the replica is gone, which ends the process."""
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self._link, sock=replica)
        setup = await self._setup
        gives_vectors = setup.vllm_config.model_config.runner_type == "pooling"
        few = FEW if gives_vectors else None
        self._core = RemoteCore(self._link.send, setup.supported_tasks, at_a_time=few)
        if gives_vectors:
            self._waiting = FrontRows(VECTORS_AT_A_TIME)
        self._openai = OpenAILayer(await _app(setup, self._core, self._rules))
        prepare_to_serve()
        self._link.send(Ready(os.getpid()))
        await loop.create_future()

    def _take(self, message: Message) -> None:
        match message:
            case Row():
                self._waiting.add(message)
                self._begin_soon()
            case Outputs(frames=frames, is_first=is_first):
                assert self._core is not None  # noqa: S101  # it has sequences
                self._core.take(frames, is_first=is_first)
            case Cancel(number=number):
                self._waiting.forget(number)
                if (running := self._rows.get(number)) is not None:
                    running.cancel()
            case Ping():
                self._link.send(Pong())
            case Setup(pickled=pickled):
                # From the process that has started this one.
                self._setup.set_result(pickle.loads(pickled))  # noqa: S301
            case _:
                raise TypeError(f"a front takes no {type(message).__name__}")

    def _begin_soon(self) -> None:
        if not self._is_beginning and self._waiting:
            self._is_beginning = True
            asyncio.get_running_loop().call_soon(self._begin_some)

    def _begin_some(self) -> None:
        for row in self._waiting.take(time.monotonic()):
            self._begin(row)
        self._link.hold(self._waiting.are_kept)
        self._is_beginning = False
        self._begin_soon()

    def _begin(self, row: Row) -> None:
        task = self._rows[row.number] = asyncio.create_task(self._answer(row))
        task.add_done_callback(lambda _: self._rows.pop(row.number, None))

    async def _answer(self, row: Row) -> None:
        assert self._openai is not None  # noqa: S101  # it was ready before it had rows
        row_number.set(row.number)
        try:
            request = request_of(row.line, self._rules)
            if isinstance(request, Request):
                answer = answer_of(request, await self._openai.answer(*request), self._rules)
            else:
                answer = RowAnswer(*request)
        except Exception as error:  # noqa: BLE001  # the replica waits for an answer
            log.error("front.not_answered", reason=type(error).__name__)  # noqa: TRY400
            answer = RowAnswer(*failure(SERVER_ERROR, {"type": "server_error"}))
        self._link.send(Answer(row.number, answer))
        if row.is_first:
            self._link.hold(False)


async def _app(setup: SimpleNamespace, core: RemoteCore, rules: RowRules) -> Any:
    """The application of vLLM, as Ray's server makes it."""
    from starlette.datastructures import State
    from vllm.entrypoints.openai.api_server import build_app, init_app_state
    from vllm.plugins import load_general_plugins
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.core_client import EngineCoreClient
    from vllm.v1.executor import Executor

    load_general_plugins()  # type: ignore[no-untyped-call]  # vLLM's
    register_media_connector(rules.media.limits)
    # The constructor has no parameter for it.
    factory: Any = EngineCoreClient
    factory.make_async_mp_client = staticmethod(lambda **_: core)
    client = AsyncLLM(
        vllm_config=setup.vllm_config,
        executor_class=Executor,
        log_requests=False,
        log_stats=False,
    )
    refuse_killers(client)
    keep_environment()
    load_each_alone()
    state = State()
    await init_app_state(
        client,
        state=state,
        args=setup.args,
        supported_tasks=setup.supported_tasks,
    )
    app = build_app(setup.args, setup.supported_tasks, model_config=client.model_config)
    app.state._state.update(state._state)  # noqa: SLF001  # as Ray does it
    # vLLM's words for errors ask for it.
    app.state.server = SimpleNamespace()
    return app


def _end() -> None:
    """The replica is gone, and nobody else wants anything of this process."""
    os._exit(0)
