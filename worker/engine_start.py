"""What a replica changes about how Ray starts vLLM: the executor, and what costs time."""

import asyncio
import os
from typing import Any

import structlog

from worker.engine_stages import StageClock
from worker.fork_server import ForkServer
from worker.forked_core import forking_cores, why_spawned
from worker.step_graphs import graph_prompts

log = structlog.get_logger()


def adapted_engine_class(
    ray_engine: type[Any],
    clock: StageClock,
    *,
    in_core: bool,
    forks: ForkServer | None = None,
    fronts: int = 1,
) -> type[Any]:
    """A subclass of Ray's engine, which needs vLLM to be imported.

    `in_core` says that the model runs in vLLM's core process, which is then a fork of `forks`, as
    the fronts are. The clock is told what has ended.
    """

    class AdaptedEngine(ray_engine):  # type: ignore[misc]
        #: What is ready where the engine starts once more.
        _again: tuple[Any, Any] | None = None

        async def restart(self) -> None:
            """Start another core in place of one that has died. The event loop goes on."""
            context = self.llm_config.get_or_create_callback().ctx
            context.run_init_node = False
            prepared = await asyncio.to_thread(self._prepared, context)
            clock.end("configuration")
            arguments, _, config = prepared
            client = await asyncio.to_thread(
                self._start_async_llm_engine, arguments, config, context.placement_group
            )
            self._again, self._running = (prepared, client), False
            await self.start()

        def _prepare_engine_config(self, context: Any) -> Any:
            if self._again is not None:
                return self._again[0]
            clock.end("imports")
            prepared = self._prepared(context)
            clock.end("configuration")
            return prepared

        def _prepared(self, context: Any) -> Any:
            prepared = self._made(context)
            if forks is not None:
                # Meanwhile vLLM's front loads it here.
                forks.load_tokenizer(prepared[2].model_config, for_fronts=fronts > 1)
            return prepared

        def _made(self, context: Any) -> Any:
            config = self.llm_config.get_engine_config()
            if not in_core and config.accelerator.requires_remote_initialization:
                return super()._prepare_engine_config(context)
            register_model_classes(config.actual_hf_model_id, config.engine_kwargs)
            return engine_in_core(config) if in_core else super()._prepare_engine_config(context)

        def _start_async_llm_engine(self, arguments: Any, config: Any, group: Any) -> Any:
            if self._again is not None:
                client, self._again = self._again[1], None
                return client
            adapt(config, fronts=fronts)
            # The arguments have what the operator says; the configuration has vLLM's choice, too.
            graph_prompts(config, is_chosen=arguments.compilation_config.cudagraph_mode is not None)
            with forking_cores(forks if in_core else None, spawned_for=why_spawned(config)):
                client = super()._start_async_llm_engine(arguments, config, group)
            clock.end("core")
            return client

    return AdaptedEngine


def adapt(config: Any, *, fronts: int) -> None:
    """Change in vLLM's configuration what follows from what stands before the core."""
    limit_steps(config.scheduler_config)
    if config.lora_config is not None and config.device_config.device_type == "cpu":
        leave_base_rows_alone(config.parallel_config)
    if fronts > 1 and config.model_config.is_multimodal_model:
        # The core remembers the media that one front has sent, but not those of several.
        config.parallel_config._api_process_count = fronts + 1  # noqa: SLF001


def engine_in_core(config: Any) -> tuple[Any, Any, Any]:
    """The arguments of vLLM and of its front, and its configuration, as Ray prepares them.

    Ray always says "mp" on CPUs and "ray" elsewhere, on which vLLM's configuration depends.
    """
    from ray.llm._internal.serve.engines.vllm import vllm_engine as rays
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import FrontendArgs
    from vllm.usage.usage_lib import UsageContext

    given = {**config.get_initialization_kwargs(), "distributed_executor_backend": "uni"}
    normalized = rays._normalize_vllm_engine_kwargs(given)  # noqa: SLF001  # no public way
    arguments = AsyncEngineArgs(**normalized)
    made = arguments.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    return arguments, FrontendArgs(**config.frontend_kwargs), made


def limit_steps(config: Any) -> None:
    """Let vLLM's scheduler limit what batches add to a step, unless the operator has chosen one."""
    from worker.step_scheduler import scheduler_name

    if config.scheduler_cls is None:
        config.scheduler_cls = scheduler_name(is_async=bool(config.async_scheduling))


def leave_base_rows_alone(config: Any) -> None:
    """Let vLLM's workers mend their LoRA operations, unless the operator has extended them."""
    if not config.worker_extension_cls:
        # Named, not imported: it changes vLLM where it is imported.
        config.worker_extension_cls = "worker.cpu_lora.BaseRowsAlone"


def skip_telemetry() -> None:
    """Start no process for usage statistics where they are off.

    Ray starts one for its LLM servers in any case, imports its LLM library there, and lets the
    engine wait for it.
    """
    if os.environ.get("RAY_USAGE_STATS_ENABLED") == "0":
        from ray.llm._internal.serve.core.server import llm_server

        # Ray has no switch for it.
        server: Any = llm_server
        server.push_telemetry_report_for_all_models = _report_nothing


def _report_nothing(**_: object) -> None:
    pass


def register_model_classes(source: str, engine_arguments: dict[str, Any]) -> None:
    """Import the model's classes here, so that vLLM needs no process to look at them.

    vLLM reads a model's properties in a separate process, to keep CUDA out of this one. That
    process imports vLLM again, which takes ten seconds of a core.
    """
    from transformers import PretrainedConfig
    from vllm.model_executor.models.registry import ModelRegistry

    try:
        revision = engine_arguments.get("revision")
        config, _ = PretrainedConfig.get_config_dict(source, revision=revision)
        for name in config.get("architectures") or ():
            if (model := ModelRegistry.models.get(name)) is not None:
                ModelRegistry.register_model(name, model.load_model_cls())
    except Exception as error:  # noqa: BLE001  # vLLM itself reports a model that it cannot load
        log.info("engine.classes_not_registered", reason=type(error).__name__)
