"""`batchyard doctor` at a working fleet: Ray, the engines, and a row through each that runs."""

import json
import subprocess
import sys

from cli.client.contexts import Target
from cli.doctor import gateway, ray
from cli.doctor.finding import Finding, Level
from cli.fleet.catalog import CHAT_MODEL
from tests.e2e.conftest import BROKEN_MODEL, RunningFleet


def test_the_doctor_finds_a_fleet_well_and_sends_a_row_through_its_engine(
    warm_chat: RunningFleet,
) -> None:
    found = _findings(warm_chat)
    says = {place: [one.says for one in found if one.place == place] for place in _places(found)}

    assert {"machine", "redis", "s3", "rabbitmq", "ray", "engines", "gateway", "rows"} <= set(says)
    # The engine of the broken model may still be there.
    failed = [one for one in found if one.level is Level.FAILED]
    assert [one for one in failed if BROKEN_MODEL not in one.says] == []
    assert says["ray"][0].startswith("Ray 2.")
    assert says["ray"][1] == "1 nodes, with one for lane jobs"
    assert f"{CHAT_MODEL}@local is running" in says["engines"]
    assert any(one.startswith(f"{CHAT_MODEL} answered a row in ") for one in says["rows"])
    assert "it is ready" in says["gateway"]


async def test_the_doctor_tells_a_ray_that_refuses_from_one_that_is_away(
    warm_chat: RunningFleet,
) -> None:
    refused = [one async for one in ray.look(warm_chat.ray_address, "wrong")]
    away = [one async for one in ray.look("http://127.0.0.1:9", "any")]

    assert [(one.level, one.says.split(" (")[0]) for one in (*refused, *away)] == [
        (Level.FAILED, "it refuses the token"),
        (Level.FAILED, "its dashboard does not answer at http://127.0.0.1:9"),
    ]
    assert all(one.do for one in (*refused, *away))


def test_a_row_that_takes_too_long_is_named_and_cancelled(warm_chat: RunningFleet) -> None:
    target = Target("doctor", f"{warm_chat.root_url}/v1", warm_chat.credentials.api_key)

    found = gateway.look(target, row_seconds=0)
    # Other engines may run as well.
    [late] = [one for one in found if one.place == "rows" and one.says.startswith(f"{CHAT_MODEL} ")]
    batch = warm_chat.client.batches.retrieve(late.do.removeprefix("batchyard explain "))

    assert late.says.startswith(f"{CHAT_MODEL} has not answered a row within 0 s")
    assert warm_chat.wait(batch).status in {"cancelled", "completed"}


def _findings(fleet: RunningFleet) -> list[Finding]:
    command = [sys.executable, "-m", "cli", "doctor", "--run-dir", str(fleet.run_dir), "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode in {0, 8}, ended.stderr
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    return [Finding(**{**line, "level": Level(line["level"])}) for line in lines]


def _places(found: list[Finding]) -> set[str]:
    return {one.place for one in found}
