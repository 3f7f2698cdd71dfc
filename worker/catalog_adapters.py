"""LoRA adapters that the catalog names: one that cannot be loaded costs its own requests alone.

vLLM would not start with it, and the model would answer nobody.
"""

from pathlib import Path
from typing import Any

import structlog

from worker.adapter_loader import VllmLoader
from worker.adapter_shelf import LoadError, not_loaded
from worker.engine_errors import Answer

log = structlog.get_logger()

#: Where vLLM's serving object keeps what we have found out.
_ANSWERS = "answers_of_unloaded_adapters"


def load_each_alone() -> None:
    """Let vLLM, in this process, start without the adapters that it cannot load."""
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels

    serving: Any = OpenAIServingModels
    serving.init_static_loras = _load_all


def answers_of_unloaded(app: Any) -> dict[str, Answer]:
    """By the name of each adapter that could not be loaded, the answer to its requests."""
    found: dict[str, Answer] = getattr(app.state.openai_serving_models, _ANSWERS, {})
    return found


async def _load_all(models: Any) -> None:
    """In place of vLLM's. Raises EngineGoneError if the engine has died of an adapter."""
    answers: dict[str, Answer] = {}
    setattr(models, _ANSWERS, answers)
    loader = VllmLoader(models.engine_client, models)
    for lora in models.static_lora_modules or ():
        try:
            await loader.load(lora.name, Path(lora.path))
        except LoadError as error:
            log.error("adapter.not_loaded", adapter=lora.name, reason=str(error))  # noqa: TRY400  # the reason is vLLM's
            answers[lora.name] = not_loaded(str(error))
