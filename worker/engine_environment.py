"""The environment of an engine's processes, as it follows from its model and its pool.

Imports nothing of Ray or vLLM.
"""

from pathlib import Path

from shared.card_share import card_share
from shared.catalog import Model, Pool
from worker.engine_endpoints import endpoints_environment
from worker.engine_sizes import live_seats, spare_seats
from worker.engine_variables import (
    DRAIN_SECONDS_VARIABLE,
    FORKED_CORE_VARIABLE,
    FRONTS_VARIABLE,
    HANG_SECONDS_VARIABLE,
    LIVE_GOALS_VARIABLE,
    LIVE_PORTS_VARIABLE,
    LIVE_SEATS_VARIABLE,
    LIVE_YIELDING_VARIABLE,
    MODEL_FOLDER_VARIABLE,
    SHARE_VARIABLE,
    SPARE_KV_VARIABLE,
    SPARE_SEATS_VARIABLE,
)
from worker.front_count import asked_fronts
from worker.moderations import moderation_environment
from worker.row_rules import rules_environment

#: vLLM's name of the executor that has no other process.
_IN_CORE = "uni"


def replica_environment(model: Model, pool: Pool) -> dict[str, str]:
    """All that a replica finds in its environment. The catalog's `env` wins."""
    return {
        HANG_SECONDS_VARIABLE: str(model.hang_seconds),
        DRAIN_SECONDS_VARIABLE: str(model.drain_seconds),
        SPARE_SEATS_VARIABLE: str(spare_seats(model)),
        SPARE_KV_VARIABLE: str(model.spare_kv),
        FRONTS_VARIABLE: str(asked_fronts(model, pool)),
        **({FORKED_CORE_VARIABLE: "1"} if forks_core(model, pool) else {}),
        **({MODEL_FOLDER_VARIABLE: model.source} if Path(model.source).is_absolute() else {}),
        **_live_environment(model),
        **rules_environment(model),
        **endpoints_environment(model),
        **moderation_environment(model),
        **engine_environment(model, pool),
    }


def engine_environment(model: Model, pool: Pool) -> dict[str, str]:
    """What vLLM and its libraries find there. The catalog's `env` wins."""
    starting = model.starting.environment(has_card=_has_card(pool))
    if _has_card(pool) or not runs_in_core_process(model, pool):
        return {**_share(pool), **starting, **model.env}
    return {
        **starting,
        # vLLM's CPU platform replaces the executor "uni" unless this is 0. `AsyncLLM`, which Ray
        # uses, starts its core process all the same.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # vLLM would use every core of the machine, whatever the pool says.
        "OMP_NUM_THREADS": str(max(1, int(pool.resources["CPU"]))),
        **model.env,
    }


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


def _share(pool: Pool) -> dict[str, str]:
    # Ray sets it, too, but not in the environment of the process that places the workers.
    share = card_share(pool)
    return {} if share == 1 else {SHARE_VARIABLE: f"{share:g}"}


def runs_in_core_process(model: Model, pool: Pool) -> bool:
    """Whether the model runs in vLLM's core process instead of a worker process beside it.

    It does where it needs one worker: a process more costs eight seconds more to start, and each
    step of the engine a way there and back. It does not where the operator asks for another
    executor, or binds threads to cores.
    """
    if _has_card(pool):
        is_alone = model.engine.get("distributed_executor_backend", _IN_CORE) == _IN_CORE
    else:
        is_alone = "CPU" in pool.resources and "VLLM_CPU_OMP_THREADS_BIND" not in model.env
    ways = ("tensor", "pipeline", "data")
    return is_alone and {model.engine.get(f"{way}_parallel_size", 1) for way in ways} == {1}


def forks_core(model: Model, pool: Pool) -> bool:
    """Whether the core is a fork of a process that has imported vLLM (ADR 55)."""
    return model.starting.core == "forked" and runs_in_core_process(model, pool)


def _has_card(pool: Pool) -> bool:
    return pool.accelerator_type is not None or "GPU" in pool.resources
