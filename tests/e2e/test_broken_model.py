"""A model that cannot load fails its own batch with its reason, and affects no other."""

import asyncio
import secrets
from contextlib import closing

import httpx

from cli.fleet.catalog import CHAT_MODEL
from shared.scopes import Scope
from tests.e2e.conftest import BROKEN_MODEL, COLD_SECONDS, RunningFleet, chat_lines, until

_REASON = "does not exist on this machine"


def test_a_model_that_cannot_load_fails_its_batch_and_everybody_sees_why_within_a_minute(
    fleet: RunningFleet,
) -> None:
    batch = fleet.submit(chat_lines(2, model=BROKEN_MODEL), "/v1/chat/completions")
    until(lambda: _failed_starts(fleet) > 0, COLD_SECONDS)
    with (
        httpx.Client(base_url=fleet.root_url, timeout=60) as tenant,
        closing(_operator(fleet)) as operator,
    ):
        tenant.post("/ui/sign-in", data={"key": fleet.credentials.api_key})
        # What `top` shows, and what the batch says, each beside its page.
        ways = {
            (operator, "/v1/admin/fleet"),
            (operator, "/ui/fleet"),
            (tenant, f"/v1/batches/{batch.id}/explain"),
            (tenant, f"/ui/batches/{batch.id}"),
        }
        tenant.headers["authorization"] = f"Bearer {fleet.credentials.api_key}"

        def is_everywhere() -> bool:
            ways.difference_update([way for way in ways if _REASON in _text(*way)])
            return not ways

        until(is_everywhere, 60)

    ended = fleet.wait(batch, seconds=COLD_SECONDS)
    assert ended.status == "failed"
    assert ended.errors is not None
    assert ended.errors.data is not None
    problem = ended.errors.data[0]
    assert problem.code == "engine_failed"
    assert "does not exist" in (problem.message or "")
    # Both end after the batch, and nobody starts them again for it.
    until(lambda: not fleet.lane_jobs(BROKEN_MODEL) and not fleet.engines(BROKEN_MODEL))
    healthy = fleet.client.models.list()
    assert CHAT_MODEL in [model.id for model in healthy]


def _failed_starts(fleet: RunningFleet) -> int:
    """How often Serve has said that a replica did not start for this reason."""
    logs = (fleet.run_dir / "ray-logs/serve").glob("controller_*.log")
    return sum(log.read_text().count(_REASON) for log in logs)


def _operator(fleet: RunningFleet) -> httpx.Client:
    """Somebody with a key for the whole fleet, on the page and over the API."""
    key = f"sk-batchyard-{secrets.token_hex(20)}"

    async def add() -> None:
        state = fleet.state()
        await state.keys.add("operators", key, scopes=(Scope.OPERATOR,))
        await state.close()

    asyncio.run(add())
    client = httpx.Client(base_url=fleet.root_url, timeout=60)
    client.post("/ui/sign-in", data={"key": key})
    client.headers["authorization"] = f"Bearer {key}"
    return client


def _text(client: httpx.Client, path: str) -> str:
    return client.get(path).raise_for_status().text
