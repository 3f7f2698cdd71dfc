"""The engine of a lane: Ray's own LLM server with one more method, which answers request lines.

Serve stores this class by its import path, and a replica of a deployment that an older version made
looks for it here: it must keep its name and its module.
"""

import asyncio
import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import structlog

from shared.errors import SetupError
from shared.openai.endpoints import ENDPOINTS
from worker.collector import collector_paused
from worker.engine_errors import (
    EngineGoneError,
    EngineHungError,
    EngineUnavailableError,
    Result,
)
from worker.engine_results import SERVER_ERROR, refusal
from worker.engine_start import adapted_engine_class, skip_telemetry
from worker.openai_layer import OpenAILayer
from worker.progress import Progress

with collector_paused():
    from ray.serve.llm import LLMServer

log = structlog.get_logger()

#: The environment variable that holds the model's `hang_seconds` for a replica.
HANG_SECONDS_VARIABLE = "BATCHYARD_HANG_SECONDS"

#: How often the engine's progress is checked, in seconds.
_CHECK_SECONDS = 1.0
#: How long vLLM may take to notice that its processes are dead, in seconds.
_DEATH_SECONDS = 30.0


class BatchServer(LLMServer):
    """One replica of an engine."""

    async def start(self) -> None:
        """Load the model. Ray's constructor calls this once."""
        config: Any = self._llm_config  # Ray's annotations allow None, which it never is
        source = Path(config.model_loading_config.model_source)
        if source.is_absolute():
            if not source.exists():  # noqa: ASYNC240  # nothing else runs in this process yet
                raise SetupError(f"The model's folder {source} does not exist on this machine.")
            # There is nothing to download, and the task that looks would import vLLM first.
            config.get_or_create_callback().ctx.run_init_node = False
        skip_telemetry()
        try:
            with collector_paused():
                await super().start()  # type: ignore[no-untyped-call]  # Ray's
        except Exception as error:
            # A child process that failed wrote its reason into this replica's log, nowhere else.
            if (reason := _last_child_error()) is None:
                raise
            raise SetupError(reason) from error
        engine: Any = self.engine
        self._client = engine._engine_client  # noqa: SLF001  # Ray has no public way
        self._openai = OpenAILayer(await engine.build_asgi_app())
        # A long waiting list slows vLLM's scheduler down; a short one keeps it full.
        max_num_seqs = self._client.vllm_config.scheduler_config.max_num_seqs
        self._rows = asyncio.Semaphore(int(max_num_seqs * 1.1) + 1)
        self._is_hung = False
        hang_seconds = float(os.environ[HANG_SECONDS_VARIABLE])
        self._watching = asyncio.create_task(self._kill_when_hung(hang_seconds))

    def _get_default_engine_class(self) -> type[Any]:
        return adapted_engine_class(super()._get_default_engine_class())

    async def run_lines(self, lines: Sequence[bytes]) -> list[Result]:
        """Answer each line `{"custom_id", "method", "url", "body"[, "request_id"]}`, in order.

        Raises EngineGoneError when the engine died while the lines were in it.
        """
        if self._client.errored:
            # These lines never reached the engine, so they cannot have killed it.
            raise EngineUnavailableError("the engine is about to be restarted")
        results = await asyncio.gather(*map(self._run_line, lines))
        # vLLM answers 500 for every row of a dead engine. Those are not results.
        if self._client.errored and any(status >= SERVER_ERROR for status, _ in results):
            if self._is_hung:
                raise EngineHungError("the engine hung while these lines were in it")
            raise EngineGoneError("the engine died while these lines were in it")
        return results

    async def unfinished(self) -> int:
        """How many requests are in vLLM right now."""
        return self._unfinished()

    async def _run_line(self, line: bytes) -> Result:
        try:
            request = json.loads(line)
            url, body = request["url"], request["body"]
            request_id = request.get("request_id")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return refusal(
                "This line is not a request. Write a JSON object with a `url` and a `body`."
            )
        # vLLM's app has more, some of it not for tenants: loading adapters, shutting down.
        if url not in ENDPOINTS:
            return refusal(
                f"There is no endpoint {url!r}. Use one of {', '.join(ENDPOINTS)}.",
                status=404,
                param="url",
            )
        if isinstance(body, dict) and body.get("stream"):
            return refusal(
                "Streaming is not supported in the Batch API. Leave out `stream`.",
                param="body.stream",
                code="streaming_unsupported",
            )
        if not (isinstance(request_id, str) and request_id.isascii() and request_id.isprintable()):
            request_id = None  # it would not be a valid header
        async with self._rows:
            return await self._openai.answer(url, body, request_id)

    def _unfinished(self) -> int:
        count: int = self._client.output_processor.get_num_unfinished_requests()
        return count

    async def _kill_when_hung(self, hang_seconds: float) -> None:
        """Kill an engine that hangs, so that its calls end and Ray starts another one."""
        progress = Progress(hang_seconds)
        core, get_output = self._client.engine_core, self._client.engine_core.get_output_async

        async def get_and_note_output() -> Any:
            outputs = await get_output()
            progress.note()
            return outputs

        core.get_output_async = get_and_note_output
        while not progress.has_stalled(self._unfinished()):
            await asyncio.sleep(_CHECK_SECONDS)
            if self._client.errored:
                # It died on its own. Its last rows never finish.
                return
        log.error("engine.hung", seconds=hang_seconds, rows=self._unfinished())
        self._is_hung = True
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        await asyncio.sleep(_DEATH_SECONDS)
        if not self._client.errored:
            os._exit(1)


def _last_child_error() -> str | None:
    """The last exception that vLLM's child processes wrote into the replica's own log files."""
    last = None
    for output in (1, 2):
        try:
            lines = Path(f"/proc/self/fd/{output}").read_text(errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            found = re.search(r"^\((?:EngineCore|Worker)\b.*?\] ((?:\w+\.)*\w*Error: .*)", line)
            last = found[1] if found else last
    return last
