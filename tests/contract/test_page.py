"""The page in a real Chromium: seen, read by a screen reader's rules, and steered by keyboard."""

import json
import re
import secrets
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from shared.scopes import Scope
from shared.state.batches import Told
from tests.contract.conftest import Caller, batch_params, row, rows
from tests.contract.engine import REFUSE, WAIT
from tests.contract.installing import installed_for_node, untested

_ROOT = Path(__file__).parents[2]
_STEPS = Path(__file__).with_name("node") / "page.mjs"
#: For a person to look at.
_PICTURES = _ROOT / "build/pictures"
_SECONDS = 600

# A browser's pictures and audits of every view take minutes on two busy cores.
pytestmark = [pytest.mark.on_demand, pytest.mark.timeout(_SECONDS + 120)]


@pytest.fixture(scope="module")
def chromium() -> str:
    found = shutil.which("chromium")
    if found is None:
        untested("there is no Chromium. Install Debian's package 'chromium'.")
    return found


def test_a_person_steers_batches_in_a_browser(acme: Caller, chromium: str, tmp_path: Path) -> None:
    folder = installed_for_node("browser", _ROOT / "locks/browser-node.txt")
    shutil.copy(_STEPS, folder)
    _PICTURES.mkdir(parents=True, exist_ok=True)
    (tmp_path / "held.jsonl").write_bytes(rows(*[WAIT] * 8))
    (tmp_path / "bad.jsonl").write_bytes(row("a") + b"not json\n" + row("a"))
    mixed = acme.run(
        rows("Is the sky blue?", REFUSE, "Why?"), metadata={"label": "org-wide survey"}
    )
    operator = f"sk-batchyard-{secrets.token_hex(20)}"
    acme.yard.on_state(
        lambda state: state.keys.add("yard", operator, scopes=(Scope.OPERATOR, Scope.ADMIN))
    )
    paced = acme.create(rows(*[WAIT] * 400), metadata={"label": "nightly tags"})["id"]
    acme.until(paced, "in_progress")
    _pretend_pace(acme, paced)
    _pretend_end_and_cost(acme, paced)

    found = _steps(
        folder,
        url=acme.yard.url,
        key=acme.key,
        chromium=chromium,
        pictures=str(_PICTURES),
        mixed=mixed["id"],
        operator=operator,
        paced=paced,
        tenant=acme.tenant,
        batch=batch_params(acme.upload(rows("hello", "you"))),
        held=str(tmp_path / "held.jsonl"),
        bad=str(tmp_path / "bad.jsonl"),
    )

    acme.made.append(found["started"])
    assert found["violations"] == []
    assert any(one.startswith("label ") for one in found["planted"])
    # The missing page, which was looked at on purpose, is the only complaint of the browser.
    assert found["complaints"] == []
    assert "404" in found["lost"]
    [cookie] = found["cookies"]
    assert cookie["httpOnly"] and cookie["sameSite"] == "Lax" and cookie["value"] != acme.key
    assert found["appeared"] and found["cancelled"] and found["filtered"] == 1
    assert "Is the sky blue?" in found["results"]
    assert "tiny@cpu" in found["fleet"]
    assert "0.0417 EUR" in found["paced"] and "41.7 s of GPUs" in found["paced"]
    # It is foreseen for a moment, and the browser comes later.
    assert re.search(r"\d+ min( \d+ s)? to \d+ min( \d+ s)? left", found["paced"])
    assert "as 19 batches like it" in found["paced"]
    assert found["plain"] >= 3
    assert "Completed" in found["plainBatch"]
    assert found["signedOut"].endswith("/ui/sign-in?next=%2Fui%2Fbatches")
    assert acme.batch(found["started"])["metadata"] == {"label": "cancelled by keyboard"}
    assert all((_PICTURES / f"{name}.png").exists() for name in found["seen"])


def _pretend_pace(caller: Caller, batch_id: str) -> None:
    """Let the batch look as if it had run for ten minutes, for a picture of the plot."""
    now, rows_done = time.time(), 0
    marks = []
    for second in range(0, 600, 3):
        rows_done += 1 + (second // 100) % 2
        marks.append(f"{int((now - 600 + second) * 1000)} {rows_done} {rows_done * 350}")
    redis = caller.yard.redis
    redis.delete(f"{{batchyard}}:pace:{batch_id}")
    redis.rpush(f"{{batchyard}}:pace:{batch_id}", *marks)


def _pretend_end_and_cost(caller: Caller, batch_id: str) -> None:
    """What a batch knows whose engine counts its time, on a lane where others have ended."""
    at = int(time.time()) + 1015
    basis = {"pace": "batch", "batches": 19, "start_seconds": 0}
    told = {"finish_at": at, "finish_p80_at": at + 2000, "rests_on": basis}
    caller.yard.on_state(lambda state: state.batches.predict([Told(batch_id, json.dumps(told))]))
    caller.yard.redis.hset(
        f"{{batchyard}}:batch:{batch_id}",
        mapping={
            "spent": '{"tiny@cpu":41700000}',
            "prices": '{"currency": "eur", "pools": {"cpu": 3.6}}',
        },
    )


def _steps(folder: Path, **given: object) -> dict[str, Any]:
    done = subprocess.run(
        ["node", "page.mjs"],
        cwd=folder,
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
