"""What Ray and vLLM are told of an engine, as it follows from its model and its pool.

Imports vLLM, which takes ten seconds: belongs into a replica, or into a check.
"""

from typing import Any

from ray.serve.llm import LLMConfig, ModelLoadingConfig

from shared.cache_salt import EVERYONE
from shared.card_share import card_share, memory_share
from shared.catalog import Model, Pool
from worker.engine_environment import runs_in_core_process
from worker.engine_placement import placement_of
from worker.engine_sizes import DEFAULT_MAX_NUM_BATCHED_TOKENS, live_seats, spare_seats


def llm_config(model: Model, pool: Pool) -> LLMConfig:
    """Ray's description of the engine; raises pydantic's ValidationError for what Ray rejects."""
    arguments = engine_arguments(model, pool)
    if runs_in_core_process(model, pool):
        # Ray refuses it.
        arguments.pop("distributed_executor_backend")
    return LLMConfig(
        model_loading_config=ModelLoadingConfig(model_id=model.name, model_source=model.source),
        engine_kwargs=arguments,
        accelerator_type=pool.accelerator_type,
        placement_group_config=placement_of(pool),
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
        **model.starting.arguments,
        "max_num_seqs": model.seats + spare_seats(model) + live_seats(model),
        # Each row has a rank of the engine's queue.
        "scheduling_policy": "priority",
    }
    if runs_in_core_process(model, pool):
        arguments["distributed_executor_backend"] = "uni"
    if model.revision is not None:
        arguments["revision"] = model.revision
    if model.chat_template is not None:
        arguments["chat_template"] = model.chat_template
    if model.lora or model.tenant_lora:
        arguments["enable_lora"] = True
        arguments["lora_modules"] = [
            LoRAModulePath(name=name, path=path) for name, path in model.lora.items()
        ]
    return arguments


def _media_cache(model: Model) -> dict[str, Any]:
    """What vLLM has read of media it keeps for whoever sends the same, which times would tell."""
    return {} if EVERYONE in model.share_prefixes else {"mm_processor_cache_gb": 0}


def _memory(pool: Pool) -> dict[str, float]:
    return {} if card_share(pool) == 1 else {"gpu_memory_utilization": memory_share(pool)}
