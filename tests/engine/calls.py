"""Calls of a real engine with a tiny model, and their results so far."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx

from cli.models.tiny import make_tiny_chat_model
from shared.cache_salt import CacheSalts
from shared.catalog import Catalog, Lane
from shared.doors import SALT_HEADER, TENANT_HEADER, Door
from shared.ordering.work import Work
from worker.engine_errors import Result

#: What a call may take whose engine starts on a busy machine.
END_SECONDS = 1200


def tiny_catalog(
    folder: Path, lane: Lane, resources: Mapping[str, float], *, seats: int, **fields: Any
) -> Catalog:
    """A catalog of one lane, whose model is made in this folder and has these fields besides."""
    make_tiny_chat_model(folder / lane.model)
    return Catalog.model_validate(
        {
            "pools": {lane.pool: {"resources": resources}},
            "models": {
                lane.model: {
                    "source": str(folder / lane.model),
                    "pools": [lane.pool],
                    "engine": {
                        "max_model_len": 1024,
                        "max_num_seqs": seats,
                        "enforce_eager": True,
                        "dtype": "float32",
                    },
                    "env": {"VLLM_CPU_KVCACHE_SPACE": 1, "TORCH_COMPILE_DISABLE": 1},
                    **fields,
                }
            },
        }
    )


class Call:
    """Rows of one batch in the engine, and the results that they have so far."""

    def __init__(
        self,
        engine: str,
        batch_id: str,
        tokens: list[int],
        *,
        tenant: str = "",
        salts: CacheSalts | None = None,
        **fields: Any,
    ) -> None:
        from worker.engine_client import EngineClient

        self._client = EngineClient(engine, salts=salts)
        works = [
            Work(batch_id, number, tenant or batch_id, 0, 0, 86_400, 50, batch_rows=len(tokens))
            for number in range(len(tokens))
        ]
        lines = [_line(count, **fields) for count in tokens]
        #: By row, in the order of their coming.
        self.results: dict[int, Result] = {}
        self.task = asyncio.create_task(self._run(lines, works))

    async def _run(self, lines: list[bytes], works: list[Work]) -> None:
        async with aclosing(self._client.run_lines(lines, works)) as groups:
            async for group in groups:
                self.results.update(group)

    async def end(self, status: int = 200) -> list[dict[str, Any]]:
        """Its answers, by row; all have this status."""
        await asyncio.wait_for(self.task, END_SECONDS)
        assert {result[0] for result in self.results.values()} == {status}
        return [json.loads(result[1]) for _, result in sorted(self.results.items())]

    @property
    def micros(self) -> int:
        """The GPU time of all results."""
        return sum(sum(more) for _, _, *more in self.results.values())

    async def cancel(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


def live_client(door: Door) -> httpx.AsyncClient:
    """What a gateway is to a door."""
    return httpx.AsyncClient(
        base_url=f"http://{door.host}:{door.port}",
        headers=[
            (b"authorization", b"Bearer " + door.token.encode()),
            (b"x-request-id", b"request"),
            (TENANT_HEADER, b"acme"),
            (SALT_HEADER, b""),
        ],
        timeout=300,
        trust_env=False,
    )


def _line(tokens: int, **fields: Any) -> bytes:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Tell me about trains, please."}],
        "max_tokens": tokens,
        "ignore_eos": True,
        **fields,
    }
    return json.dumps({"custom_id": "row", "url": "/v1/chat/completions", "body": body}).encode()
