"""The engine of a lane: Ray's own LLM server, plus one method that answers chunks of request lines.

Every answer comes from vLLM's own OpenAI layer, called in the process that holds the engine. This
is the only file that imports vLLM; lane jobs talk to it through `worker.engine_client`.
"""

import asyncio
import json
import math
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil
import structlog
from ray import serve
from ray.serve.config import ProxyLocation
from ray.serve.llm import LLMConfig, LLMServer, ModelLoadingConfig, build_llm_deployment
from ray.serve.schema import LoggingConfig
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from shared.catalog import Catalog, Lane, Model, Pool
from shared.errors import SetupError
from shared.openai.endpoints import ENDPOINTS
from worker.engine_client import (
    DEFAULT_MAX_NUM_SEQS,
    DEPLOYMENT,
    ROWS_PER_ENGINE_CALL,
    engine_failure,
    is_deployed,
    stale_apps,
)
from worker.engine_errors import (
    EngineGoneError,
    EngineHungError,
    EngineUnavailableError,
    Result,
)
from worker.progress import Progress
from worker.races import retry_lost

log = structlog.get_logger()

_CLIENT_ERROR, _SERVER_ERROR = 400, 500

#: How long a row that the caller gave up may take to leave vLLM, in seconds.
ABORT_SECONDS = 5

#: vLLM derives it from the machine when it is not set, and guesses too low for batches.
DEFAULT_MAX_NUM_BATCHED_TOKENS = 8192

#: How often an engine's progress is looked at, in seconds.
_LOOK_SECONDS = 1.0
#: What vLLM may need to notice that its processes are dead, in seconds.
_DEATH_SECONDS = 30.0
_HANG_SECONDS = "BATCHYARD_HANG_SECONDS"


class _Endpoint(NamedTuple):
    """One of vLLM's serving objects: what it reads, and the call that answers it."""

    request: Callable[[Any], Any]
    answer: Callable[[Any, Request], Awaitable[Any]]


class BatchServer(LLMServer):
    """One replica of an engine."""

    async def start(self) -> None:
        """Called once by Ray's constructor; loads the model."""
        config: Any = self._llm_config  # Ray's annotations allow what it never is
        source = Path(config.model_loading_config.model_source)
        if source.is_absolute():
            if not source.exists():  # noqa: ASYNC240  # nothing else runs here yet
                raise SetupError(f"The model's folder {source} does not exist on this machine.")
            # Nothing to download: saves a task that imports vLLM only to find that out.
            config.get_or_create_callback().ctx.run_init_node = False
        try:
            await super().start()  # type: ignore[no-untyped-call]  # Ray's
        except Exception as error:
            # A child process that failed has told its reason to the log, and nobody else.
            if (told := _last_words()) is None:
                raise
            raise SetupError(told) from error
        engine: Any = self.engine
        self._client = engine._engine_client  # noqa: SLF001  # Ray has no public way
        self._app = await engine.build_asgi_app()
        self._endpoints = _endpoints(self._app.state)
        # A long waiting list slows vLLM's scheduler down; a short one keeps it full.
        most = self._client.vllm_config.scheduler_config.max_num_seqs
        self._rows = asyncio.Semaphore(int(most * 1.1) + 1)
        self._is_hung = False
        self._watching = asyncio.create_task(self._watch(float(os.environ[_HANG_SECONDS])))

    def _get_default_engine_class(self) -> type[Any]:
        """Ray's engine, with the executor that was asked for: on CPUs it always says "mp"."""
        ray_engine: type[Any] = super()._get_default_engine_class()

        class Engine(ray_engine):  # type: ignore[misc]
            def _start_async_llm_engine(self, arguments: Any, config: Any, group: Any) -> Any:
                if asked := self.llm_config.engine_kwargs.get("distributed_executor_backend"):
                    config.parallel_config.distributed_executor_backend = asked
                return super()._start_async_llm_engine(arguments, config, group)

        return Engine

    async def run_lines(self, lines: Sequence[bytes]) -> list[Result]:
        """Answer each line `{"custom_id", "method", "url", "body"[, "request_id"]}`, in order.

        Raises EngineGoneError when the engine died under these lines.
        """
        if self._client.errored:
            # These lines never reached the engine: they cannot be what killed it.
            raise EngineUnavailableError("the engine is about to be restarted")
        results = await asyncio.gather(*map(self._run_line, lines))
        # vLLM answers 500 for every row of a dead engine. Those are not answers.
        if self._client.errored and any(status >= _SERVER_ERROR for status, _ in results):
            if self._is_hung:
                raise EngineHungError("the engine hung while these lines were in it")
            raise EngineGoneError("the engine died while these lines were in it")
        return results

    async def unfinished(self) -> int:
        """How many requests are in vLLM right now."""
        return self._unfinished()

    def _unfinished(self) -> int:
        count: int = self._client.output_processor.get_num_unfinished_requests()
        return count

    async def _watch(self, seconds: float) -> None:
        """End an engine that hangs, so that its rows are told and Ray starts another one."""
        progress = Progress(seconds)
        core, answer = self._client.engine_core, self._client.engine_core.get_output_async

        async def noted() -> Any:
            outputs = await answer()
            progress.note()
            return outputs

        core.get_output_async = noted
        while not progress.has_stalled(self._unfinished()):
            await asyncio.sleep(_LOOK_SECONDS)
            if self._client.errored:
                # It has died by itself; its last rows stay unfinished for ever.
                return
        log.error("engine.hung", seconds=seconds, rows=self._unfinished())
        self._is_hung = True
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        await asyncio.sleep(_DEATH_SECONDS)
        if not self._client.errored:
            os._exit(1)

    async def _run_line(self, line: bytes) -> Result:
        try:
            request = json.loads(line)
            url, body = request["url"], request["body"]
            request_id = request.get("request_id")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return _refusal("The line is not a request: it needs a url and a body.")
        # vLLM's app has more, some of it not for strangers: loading adapters, shutting down.
        if url not in ENDPOINTS:
            return _refusal(f"There is no endpoint {url!r}.", status=404, param="url")
        if isinstance(body, dict) and body.get("stream"):
            return _refusal(
                "Streaming is not supported in the Batch API.",
                param="body.stream",
                code="streaming_unsupported",
            )
        headers = [(b"content-type", b"application/json")]
        if isinstance(request_id, str) and request_id.isascii() and request_id.isprintable():
            headers.append((b"x-request-id", request_id.encode()))
        async with self._rows:
            try:
                return await self._answer(url, body, headers)
            except Exception as error:  # noqa: BLE001  # a row's failure is its result
                return _error_of(error)

    async def _answer(self, url: str, body: Any, headers: list[tuple[bytes, bytes]]) -> Result:
        endpoint = self._endpoints.get(url)
        if endpoint is None:
            return await self._answer_by_app(url, body, headers)
        try:
            request = endpoint.request(body)
        except Exception:  # noqa: BLE001  # whatever is wrong, the app has the words for it
            return await self._answer_by_app(url, body, headers)
        scope = {"type": "http", "method": "POST", "path": url, "headers": headers}
        return _result_of(await endpoint.answer(request, Request(scope)))

    async def _answer_by_app(
        self,
        url: str,
        body: Any,
        headers: list[tuple[bytes, bytes]],
    ) -> Result:
        """By way of vLLM's whole FastAPI app: every endpoint, and the words for invalid bodies.

        Costs about 1.6 ms of CPU a row, which is why the busy endpoints do without.
        """
        sent = iter([{"type": "http.request", "body": json.dumps(body).encode()}])
        abandoned = asyncio.Event()
        status, chunks, kind = 500, [], b""

        async def receive() -> dict[str, Any]:
            for message in sent:
                return message
            await abandoned.wait()
            # The one way to make vLLM's app abort a row.
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            nonlocal status, kind
            if message["type"] == "http.response.start":
                status = message["status"]
                kind = dict(message["headers"]).get(b"content-type", b"")
            elif message["type"] == "http.response.body":
                chunks.append(message.get("body", b""))

        call = asyncio.ensure_future(self._app(_scope(url, headers), receive, send))
        try:
            await asyncio.shield(call)
        except asyncio.CancelledError:
            abandoned.set()
            await asyncio.wait([call], timeout=ABORT_SECONDS)
            raise
        return _result_of_bytes(status, b"".join(chunks), kind)


def _last_words() -> str | None:
    """The last exception that vLLM's child processes printed: Ray gives each replica a file."""
    told = None
    for output in (1, 2):
        try:
            lines = Path(f"/proc/self/fd/{output}").read_text(errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            found = re.search(r"^\((?:EngineCore|Worker)\b.*?\] ((?:\w+\.)*\w*Error: .*)", line)
            told = found[1] if found else told
    return told


class _FastJSONResponse(JSONResponse):
    """The same numbers in a fifteenth of the time: 13 µs instead of 190 for one vector of 384."""

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


def _endpoints(state: Any) -> dict[str, _Endpoint]:
    """The busy endpoints that this model has, without the web framework around them."""
    from pydantic import TypeAdapter
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest

    found: dict[str, _Endpoint] = {}
    if chat := getattr(state, "openai_serving_chat", None):
        found["/v1/chat/completions"] = _Endpoint(
            ChatCompletionRequest.model_validate, chat.create_chat_completion
        )
    if completion := getattr(state, "openai_serving_completion", None):
        found["/v1/completions"] = _Endpoint(
            CompletionRequest.model_validate, completion.create_completion
        )
    if embedding := getattr(state, "serving_embedding", None):
        embedding.json_response_cls = _FastJSONResponse
        found["/v1/embeddings"] = _Endpoint(
            TypeAdapter(EmbeddingRequest).validate_python, embedding
        )
    return found


def _scope(url: str, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": url,
        "raw_path": url.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 80),
    }


def _result_of(answer: Any) -> Result:
    if isinstance(answer, Response):
        kind = answer.headers.get("content-type", "").encode()
        return _result_of_bytes(answer.status_code, bytes(getattr(answer, "body", b"")), kind)
    if hasattr(answer, "error"):
        return _envelope(answer.error.code, answer.error.model_dump())
    return 200, _ascii(answer.model_dump_json())


def _result_of_bytes(status: int, body: bytes, kind: bytes) -> Result:
    if status < _CLIENT_ERROR:
        if not kind.startswith(b"application/json"):
            return _refusal("This form of answer is not JSON, and cannot be in a batch's output.")
        return status, _ascii(body.decode())
    try:
        told = json.loads(body)
    except ValueError:
        told = {}
    error = told.get("error", told.get("detail")) if isinstance(told, dict) else None
    if not isinstance(error, dict):
        kind_of_error = "invalid_request_error" if status < _SERVER_ERROR else "server_error"
        error = {"message": str(error or "No reason was given."), "type": kind_of_error}
    return _envelope(status, error)


def _error_of(error: Exception) -> Result:
    """What vLLM's app would have answered."""
    from vllm.entrypoints.serve.exception_handling.error_response import (
        create_error_response,
    )

    told = create_error_response(error).error
    return _envelope(told.code, told.model_dump())


def _refusal(
    message: str, *, status: int = 400, param: str | None = None, code: str | None = None
) -> Result:
    kind = "invalid_request_error"
    return _envelope(status, {"message": message, "type": kind, "param": param, "code": code})


def _envelope(status: int, error: dict[str, Any]) -> Result:
    keys = ("message", "type", "param", "code")
    return status, json.dumps({"error": {key: error.get(key) for key in keys}}).encode()


def _ascii(text: str) -> bytes:
    """The same JSON in ASCII: no reader of lines can then find a line end in it but our own."""
    if not text.isascii():
        # Outside strings JSON is ASCII, so whatever is not may be escaped where it stands.
        text = re.sub(r"[^\x00-\x7f]+", lambda found: json.dumps(found[0])[1:-1], text)
    return text.encode("ascii")


def deploy(catalog: Catalog, lane: Lane) -> str:
    """Make sure that the lane's engine is deployed as the catalog says; the application's name.

    Does not wait for a replica. Repeating it changes nothing, and starts nothing again; engines
    of this lane with another fingerprint are removed.
    """
    name = catalog.app_name(lane)
    if not is_deployed(name) or engine_failure(name) is not None:
        # The first two engines of a cluster both start Serve's controller.
        retry_lost(lambda: serve.start(proxy_location=ProxyLocation.Disabled))
        application = build_llm_deployment(
            llm_config(catalog.model(lane.model), catalog.pools[lane.pool]),
            override_serve_options={"name": DEPLOYMENT},
        )
        serve.run_many(
            [
                serve.RunTarget(
                    application,
                    name=name,
                    route_prefix=None,
                    # One line for each chunk, otherwise.
                    logging_config=LoggingConfig(enable_access_log=False),
                )
            ],
            wait_for_applications_running=False,
        )
    for other in stale_apps(lane, name):
        serve.delete(other, _blocking=False)
    return name


def llm_config(model: Model, pool: Pool) -> LLMConfig:
    """Ray's description of the engine; raises pydantic's ValidationError for what Ray refuses."""
    return LLMConfig(
        model_loading_config=ModelLoadingConfig(model_id=model.name, model_source=model.source),
        engine_kwargs=engine_arguments(model, pool),
        accelerator_type=pool.accelerator_type,
        placement_group_config=_placement(pool),
        deployment_config=_serve_options(model, pool),
        runtime_env={
            "env_vars": {
                _HANG_SECONDS: str(model.hang_seconds),
                **engine_environment(model, pool),
            }
        },
        server_cls=BatchServer,
        log_engine_metrics=False,
    )


def engine_arguments(model: Model, pool: Pool) -> dict[str, Any]:
    """What vLLM is started with."""
    from vllm.entrypoints.openai.models.protocol import LoRAModulePath

    arguments: dict[str, Any] = {
        "max_num_seqs": DEFAULT_MAX_NUM_SEQS,
        "max_num_batched_tokens": DEFAULT_MAX_NUM_BATCHED_TOKENS,
        **model.engine,
    }
    if _has_core_only(model, pool):
        arguments["distributed_executor_backend"] = "uni"
    if model.revision is not None:
        arguments["revision"] = model.revision
    if model.chat_template is not None:
        arguments["chat_template"] = model.chat_template
    if model.lora:
        arguments["enable_lora"] = True
        arguments["lora_modules"] = [
            LoRAModulePath(name=name, path=path) for name, path in model.lora.items()
        ]
    return arguments


def engine_environment(model: Model, pool: Pool) -> dict[str, str]:
    """The variables of the engine's processes; the model's own win."""
    if not _has_core_only(model, pool):
        return dict(model.env)
    return {
        # Only at 0 does vLLM's CPU platform leave "uni" as it is; `AsyncLLM` does not read it.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # vLLM would take every core of the machine, whatever the pool says.
        "OMP_NUM_THREADS": str(max(1, int(pool.resources["CPU"]))),
        **model.env,
    }


def _has_core_only(model: Model, pool: Pool) -> bool:
    """Whether the weights live in the engine's core process and not in one more beside it.

    So on CPUs: that process costs eight seconds more to start, a copy of vLLM in memory, and a
    fifth of a small model's rate. Not where somebody binds its threads to cores, or wants several.
    """
    is_cpu = "CPU" in pool.resources and not (pool.accelerator_type or "GPU" in pool.resources)
    binds = "VLLM_CPU_OMP_THREADS_BIND" in model.env
    workers = {model.engine.get(f"{kind}_parallel_size", 1) for kind in ("tensor", "pipeline")}
    return is_cpu and not binds and workers == {1}


def _placement(pool: Pool) -> dict[str, Any] | None:
    if not pool.resources:
        return None
    if pool.accelerator_type or "GPU" in pool.resources:
        return {"bundle_per_worker": {"GPU": 1.0, **pool.resources}}
    return {"bundles": [dict(pool.resources)]}


def _serve_options(model: Model, pool: Pool) -> dict[str, Any]:
    most_rows = model.engine.get("max_num_seqs", DEFAULT_MAX_NUM_SEQS)
    full = math.ceil(most_rows / ROWS_PER_ENGINE_CALL)
    options: dict[str, Any] = {
        # Calls may hold one row each, and an engine full of those has to be full as well; how many
        # rows wait in it is bounded by the lane job. A quarter more stands ready in the replica.
        "max_ongoing_requests": most_rows + most_rows // 4,
        "health_check_period_s": 2,
        "health_check_timeout_s": 60,
        "graceful_shutdown_wait_loop_s": 1,
        "graceful_shutdown_timeout_s": 10,
        # Bounds how often an engine that cannot start is tried.
        "max_constructor_retry_count": 3,
        "autoscaling_config": {
            "min_replicas": model.min_replicas,
            "max_replicas": model.max_replicas,
            "target_ongoing_requests": full,
            "upscale_delay_s": 10,
            # Serve averages over half a minute by default, and so much longer would it stay idle.
            "metrics_interval_s": 2,
            "look_back_period_s": 6,
            "downscale_delay_s": model.idle_seconds,
            "downscale_to_zero_delay_s": model.idle_seconds,
        },
        "ray_actor_options": {"num_cpus": 0 if "CPU" in pool.resources else 1},
    }
    if pool.label_selector:
        options["placement_group_bundle_label_selector"] = [dict(pool.label_selector)]
    return options
