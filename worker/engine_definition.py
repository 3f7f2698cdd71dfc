"""The Serve deployment of an engine, as it follows from its model and its pool in the catalog."""

import math
from typing import Any

from ray import serve
from ray.serve.llm import LLMConfig, ModelLoadingConfig, build_llm_deployment
from ray.serve.schema import LoggingConfig

from shared.cache_salt import EVERYONE
from shared.card_share import card_share, memory_share
from shared.catalog import Catalog, Lane, Model, Pool
from worker.drain import END_SECONDS
from worker.engine import (
    DRAIN_SECONDS_VARIABLE,
    FRONTS_VARIABLE,
    HANG_SECONDS_VARIABLE,
    LIVE_GOALS_VARIABLE,
    LIVE_PORTS_VARIABLE,
    LIVE_SEATS_VARIABLE,
    LIVE_YIELDING_VARIABLE,
    SHARE_VARIABLE,
    SPARE_KV_VARIABLE,
    SPARE_SEATS_VARIABLE,
    BatchServer,
)
from worker.engine_endpoints import endpoints_environment
from worker.engine_sizes import (
    DEFAULT_MAX_NUM_BATCHED_TOKENS,
    ROWS_PER_ENGINE_CALL,
    live_seats,
    spare_seats,
)
from worker.engine_status import DEPLOYMENT
from worker.live_scaling import replicas_wanted
from worker.moderations import moderation_environment
from worker.row_rules import rules_environment

#: Calls that one replica has at most, which rows of batches never reach: what waits for the engine
#: waits in its queue, where it has an order, and not in Serve, where it has none.
_MAX_CALLS = 100_000
#: Where Serve's controller finds how many replicas an engine with live calls needs.
_POLICY = f"{replicas_wanted.__module__}:{replicas_wanted.__name__}"


def deploy(catalog: Catalog, lane: Lane) -> None:
    """Deploy the lane's engine. Serve starts a replica when the first call comes."""
    application = build_llm_deployment(
        llm_config(catalog.model(lane.model), catalog.pools[lane.pool]),
        override_serve_options={"name": DEPLOYMENT},
    )
    target = serve.RunTarget(
        application,
        name=catalog.app_name(lane),
        route_prefix=None,
        # It would have a line for each call.
        logging_config=LoggingConfig(enable_access_log=False),
    )
    serve.run_many([target], wait_for_applications_running=False)


def llm_config(model: Model, pool: Pool) -> LLMConfig:
    """Ray's description of the engine; raises pydantic's ValidationError for what Ray rejects."""
    return LLMConfig(
        model_loading_config=ModelLoadingConfig(model_id=model.name, model_source=model.source),
        engine_kwargs=engine_arguments(model, pool),
        accelerator_type=pool.accelerator_type,
        placement_group_config=_placement(pool),
        deployment_config=_serve_options(model, pool),
        runtime_env={
            "env_vars": {
                HANG_SECONDS_VARIABLE: str(model.hang_seconds),
                DRAIN_SECONDS_VARIABLE: str(model.drain_seconds),
                SPARE_SEATS_VARIABLE: str(spare_seats(model)),
                SPARE_KV_VARIABLE: str(model.spare_kv),
                FRONTS_VARIABLE: str(model.fronts),
                **_live_environment(model),
                **rules_environment(model),
                **endpoints_environment(model),
                **moderation_environment(model),
                **engine_environment(model, pool),
            }
        },
        server_cls=BatchServer,
        log_engine_metrics=False,
    )


def engine_arguments(model: Model, pool: Pool) -> dict[str, Any]:
    """The arguments that vLLM is started with."""
    from vllm.entrypoints.openai.models.protocol import LoRAModulePath

    arguments: dict[str, Any] = {
        "max_num_batched_tokens": DEFAULT_MAX_NUM_BATCHED_TOKENS,
        # What an answer says of the cache is what its tenant is not charged for.
        "enable_prompt_tokens_details": True,
        **_memory(pool),
        **_media_cache(model),
        **model.engine,
        "max_num_seqs": model.seats + spare_seats(model) + live_seats(model),
        # Each row has a rank of the engine's queue.
        "scheduling_policy": "priority",
    }
    if _runs_in_core_process(model, pool):
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


def _live_environment(model: Model) -> dict[str, str]:
    if model.live is None:
        return {}
    first, last = model.live.ports
    near = "" if model.live.near_deadline == "batches_yield" else model.live.deadline_seconds
    return {
        LIVE_SEATS_VARIABLE: str(live_seats(model)),
        LIVE_PORTS_VARIABLE: f"{first}-{last}",
        LIVE_GOALS_VARIABLE: f"{model.live.ttft_ms} {model.live.tpot_ms}",
        LIVE_YIELDING_VARIABLE: f"{model.live.reserve} {near}",
    }


def _media_cache(model: Model) -> dict[str, Any]:
    """What vLLM has read of media it keeps for whoever sends the same, which times would tell."""
    return {} if EVERYONE in model.share_prefixes else {"mm_processor_cache_gb": 0}


def engine_environment(model: Model, pool: Pool) -> dict[str, str]:
    """The environment variables of the engine's processes. The catalog's `env` wins."""
    if not _runs_in_core_process(model, pool):
        return {**_share(pool), **model.env}
    return {
        # vLLM's CPU platform replaces the executor "uni" unless this is 0. `AsyncLLM`, which Ray
        # uses, starts its core process all the same.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # vLLM would use every core of the machine, whatever the pool says.
        "OMP_NUM_THREADS": str(max(1, int(pool.resources["CPU"]))),
        **model.env,
    }


def _memory(pool: Pool) -> dict[str, float]:
    return {} if card_share(pool) == 1 else {"gpu_memory_utilization": memory_share(pool)}


def _share(pool: Pool) -> dict[str, str]:
    # Ray sets it, too, but not in the environment of the process that places the workers.
    share = card_share(pool)
    return {} if share == 1 else {SHARE_VARIABLE: f"{share:g}"}


def _runs_in_core_process(model: Model, pool: Pool) -> bool:
    """Whether the model runs in vLLM's core process instead of a worker process beside it.

    It does on CPUs, where a worker process costs eight seconds more to start, a second copy of vLLM
    in memory, and a fifth of a small model's rate. It does not where the operator binds threads to
    cores or asks for several workers.
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
    options: dict[str, Any] = {
        "max_ongoing_requests": _MAX_CALLS,
        "health_check_period_s": 2,
        "health_check_timeout_s": 60,
        "graceful_shutdown_wait_loop_s": 1,
        # Serve kills what has not ended by then.
        "graceful_shutdown_timeout_s": model.drain_seconds + END_SECONDS,
        # How often Serve tries an engine that cannot start.
        "max_constructor_retry_count": 3,
        "autoscaling_config": {
            "min_replicas": model.min_replicas,
            "max_replicas": model.max_replicas,
            "target_ongoing_requests": math.ceil(model.seats / ROWS_PER_ENGINE_CALL),
            "upscale_delay_s": 10,
            # By default Serve averages over half a minute, which would be added to `idle_seconds`.
            "metrics_interval_s": 2,
            "look_back_period_s": 6,
            "downscale_delay_s": model.idle_seconds,
            "downscale_to_zero_delay_s": model.idle_seconds,
            **({} if model.live is None else {"policy": {"policy_function": _POLICY}}),
        },
        # The replica has a processor, and so has each of its front processes.
        "ray_actor_options": {"num_cpus": 0 if "CPU" in pool.resources else _processors(model)},
    }
    if pool.label_selector:
        options["placement_group_bundle_label_selector"] = [dict(pool.label_selector)]
    return options


def _processors(model: Model) -> int:
    return 1 if model.fronts == 1 else 1 + model.fronts
