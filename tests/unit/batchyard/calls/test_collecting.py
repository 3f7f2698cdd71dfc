import asyncio
import tempfile
from pathlib import Path

import pytest

from batchyard.calls.batches import BatchSettings, CallBatches
from batchyard.calls.collecting import Calls
from cli.client.contexts import Target

CHAT = "/v1/chat/completions"
#: Nothing listens there.
_NOBODY = Target("nobody", "http://127.0.0.1:1/v1", "sk-x")


def _calls(run: str | None = None) -> Calls:
    batches = CallBatches(_NOBODY, BatchSettings(), run=run)
    return Calls(batches, collect_seconds=0.0, max_calls=1000)


async def test_a_call_has_an_answer_though_the_disk_takes_no_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    calls = _calls()

    answer = await asyncio.wait_for(calls.answer(CHAT, {"model": "m"}), timeout=60)
    await calls.finish()

    assert answer.status == 503
    assert "FileNotFoundError" in answer.body["error"]["message"]
