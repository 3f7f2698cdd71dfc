"""Lets vLLM load and unload LoRA adapters while it runs."""

from pathlib import Path
from typing import Any

from worker.adapter_shelf import LoadError
from worker.engine_errors import EngineGoneError

_MAX_REASON = 500


class VllmLoader:
    """Belongs to the event loop of the replica."""

    def __init__(self, client: Any, models: Any) -> None:
        """`client` is vLLM's, and `models` what its app knows the served names by."""
        self._client = client
        self._models = models

    async def load(self, name: str, folder: Path) -> None:
        """Raises LoadError, and EngineGoneError if the engine has died of it."""
        from vllm.entrypoints.serve.engine.protocol import ErrorResponse
        from vllm.entrypoints.serve.lora.protocol import LoadLoRAAdapterRequest

        request = LoadLoRAAdapterRequest(lora_name=name, lora_path=str(folder))
        answer = await self._models.load_lora_adapter(request)
        if not isinstance(answer, ErrorResponse):
            return
        if self._client.errored:
            raise EngineGoneError("The engine died while it loaded an adapter.")
        # What vLLM had read of it before it failed is still in its memory.
        await self._client.remove_lora(self._models.lora_id_counter.value)
        raise LoadError(answer.error.message.replace(str(folder), name)[:_MAX_REASON])

    async def unload(self, name: str) -> None:
        """Nothing may run with it any more."""
        request = self._models.lora_requests.pop(name)
        await self._client.remove_lora(request.lora_int_id)
