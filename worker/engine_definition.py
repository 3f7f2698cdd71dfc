"""The Serve deployment of an engine, as it follows from its model and its pool in the catalog.

Imports ray and nothing heavier: the replica imports vLLM.
"""

import math
from typing import Any

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.schema import LoggingConfig

from shared.catalog import Catalog, Lane, Model, Pool
from worker.drain import END_SECONDS
from worker.engine_environment import replica_environment, runs_in_core_process
from worker.engine_placement import bundles_of, processors_of
from worker.engine_replica import EngineReplica
from worker.engine_sizes import rows_of_call
from worker.engine_status import DEPLOYMENT
from worker.live_scaling import replicas_wanted

#: Calls that one replica has at most, which rows of batches never reach: what waits for the engine
#: waits in its queue, where it has an order, and not in Serve, where it has none.
_MAX_CALLS = 100_000
#: Where Serve's controller finds how many replicas an engine needs.
_POLICY = f"{replicas_wanted.__module__}:{replicas_wanted.__name__}"

#: How calls are shared among the replicas of an engine.
EVENLY = RequestRouterConfig(
    request_router_class="worker.even_router:EvenRouter"  # type: ignore[arg-type]  # Ray's
)


def deploy(catalog: Catalog, lane: Lane) -> None:
    """Deploy the lane's engine. Serve starts a replica when the first call comes."""
    model, pool = catalog.model(lane.model), catalog.pools[lane.pool]
    options = serve_options(model, pool)
    replica = options["ray_actor_options"]
    # Serve would start it without what the job of whoever deploys it has been given.
    replica["runtime_env"] = {**ray.get_runtime_context().runtime_env, **replica["runtime_env"]}
    deployment = serve.deployment(name=DEPLOYMENT, **options)(EngineReplica)
    target = serve.RunTarget(
        # As text, which a later version can read, too.
        deployment.bind(model.model_dump_json(), pool.model_dump_json()),
        name=catalog.app_name(lane),
        route_prefix=None,
        # It would have a line for each call.
        logging_config=LoggingConfig(enable_access_log=False),
    )
    serve.run_many([target], wait_for_applications_running=False)


def serve_options(model: Model, pool: Pool) -> dict[str, Any]:
    """The options of the deployment."""
    processors = processors_of(model, pool)
    bundles = bundles_of(model, pool, processors)
    options: dict[str, Any] = {
        "max_ongoing_requests": _MAX_CALLS,
        "request_router_config": EVENLY,
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
            "target_ongoing_requests": math.ceil(model.seats / rows_of_call(model)),
            # The policy itself decides what has to wait.
            "upscale_delay_s": 0,
            # By default Serve averages over half a minute, which would be added to `idle_seconds`.
            "metrics_interval_s": 2,
            "look_back_period_s": 6,
            "downscale_delay_s": model.idle_seconds,
            "downscale_to_zero_delay_s": model.idle_seconds,
            "policy": {"policy_function": _POLICY},
        },
        "placement_group_bundles": bundles,
        "placement_group_strategy": "PACK",
        "ray_actor_options": {
            "num_cpus": processors,
            # The card is visible to whoever asks for it: the core is the replica's child, and
            # workers ask for themselves.
            "num_gpus": bundles[0]["GPU"] if runs_in_core_process(model, pool) else 0,
            "runtime_env": {"env_vars": replica_environment(model, pool)},
        },
    }
    if pool.label_selector:
        options["placement_group_bundle_label_selector"] = [dict(pool.label_selector)]
    return options
