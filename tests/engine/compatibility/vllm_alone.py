"""What vLLM answers without Batchyard: `vllm serve`, and `vllm run-batch`."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.vllm_serve import serving
from cli.models.minilm import minilm_path
from tests.engine.compatibility.line import ADAPTER, EMBEDDER, JUDGE, SEER, WRITER, Line
from tests.engine.compatibility.models import DIMENSIONS, REASONING_PARSER
from tests.engine.conftest import QUIET

#: Status and body by the line's id; a body that is no JSON is None.
Answers = dict[str, tuple[int, Any]]

#: As our engines on CPUs. The last digit of a number depends on how many threads there are.
_CPU = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
    "TORCH_COMPILE_DISABLE": "1",
}
#: Neither half precision nor the cache may decide between two words.
_EXACT = ("--max-model-len=1024", "--dtype=float32", "--no-enable-prefix-caching")
_TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser=hermes")
#: The seats and the spare ones are part of `system_fingerprint`, and so is the policy.
_OURS = ("--enforce-eager", "--distributed-executor-backend=uni", "--max-num-seqs=40",
         "--scheduling-policy=priority", "--max-num-batched-tokens=8192",
         "--enable-prompt-tokens-details")  # fmt: skip
_RUN_BATCH_SECONDS = 900


def answers_of_serve(folder: Path, engine: str, lines: Sequence[Line]) -> Answers:
    """The answers of `vllm serve`, one after the other."""
    # Some of its 500s close their connection, so none is used again.
    alone = httpx.Limits(max_keepalive_connections=0)
    with (
        _serving(folder, engine) as url,
        httpx.Client(base_url=url, timeout=300, limits=alone) as client,
    ):
        return {line.id: _post(client, line) for line in lines}


def answers_of_run_batch(folder: Path, engine: str, lines: Sequence[Line]) -> Answers:
    """The answers of `vllm run-batch`, without the lines that would end it."""
    source, flags = _model(folder, engine)
    given, found = folder / f"{slug(engine)}-in.jsonl", folder / f"{slug(engine)}-out.jsonl"
    given.write_text("".join(f"{_written(line)}\n" for line in lines))
    subprocess.run(
        [
            *(sys.executable, "-m", "vllm.entrypoints.launchers.run_batch"),
            *(f"-i={given}", f"-o={found}", f"--model={source}", f"--served-model-name={engine}"),
            *_OURS,
            *flags,
            # It gets all lines at once, and which are computed together decides between words.
            "--max-num-seqs=1",
        ],
        env={**os.environ, **QUIET, **_CPU},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
        timeout=_RUN_BATCH_SECONDS,
    )
    # Not `splitlines`: its answers hold characters that end a line elsewhere.
    results = [json.loads(line) for line in found.read_text().strip().split("\n")]
    return {
        one["custom_id"]: (
            one["response"]["status_code"],
            one["response"]["body"] or one["error"],
        )
        for one in results
    }


def ends_run_batch(line: Line) -> bool:
    """Whether `vllm run-batch` ends with this line in its file, and answers no line of it."""
    from vllm.entrypoints.launchers.run_batch import BatchRequestInput

    try:
        BatchRequestInput.model_validate_json(_written(line))
    except Exception:  # noqa: BLE001  # whatever it is, it is not caught there
        return True
    return False


def slug(engine: str) -> str:
    """The model's name as a file's."""
    return engine.replace("/", "-")


def _written(line: Line) -> str:
    return json.dumps({"custom_id": line.id, "method": "POST", "url": line.path, "body": line.body})


def _serving(folder: Path, engine: str) -> AbstractContextManager[str]:
    source, flags = _model(folder, engine)
    return serving(source, engine, [*_OURS, *flags], {**QUIET, **_CPU})


def _model(folder: Path, engine: str) -> tuple[Path, Sequence[str]]:
    """Where it is, and what its engine is started with."""
    found: Mapping[str, tuple[Path, Sequence[str]]] = {
        WRITER: (
            folder / "tiny",
            [*_EXACT, *_TOOLS, "--enable-lora",
             f"--lora-modules={ADAPTER}={folder / 'adapter'}"],
        ),
        EMBEDDER: (
            minilm_path(), ["--runner=pooling", f"--hf-overrides={json.dumps(DIMENSIONS)}"]
        ),
        JUDGE: (folder / "judge", _EXACT),
        SEER: (folder / "seer", [*_EXACT, *_TOOLS, f"--reasoning-parser={REASONING_PARSER}",
                                 "--mm-processor-cache-gb=0"]),
    }  # fmt: skip
    return found[engine]


def _post(client: httpx.Client, line: Line) -> tuple[int, Any]:
    # Escaped, because a body may hold what UTF-8 cannot.
    content = json.dumps(line.body).encode()
    response = client.post(line.path, content=content, headers={"content-type": "application/json"})
    try:
        return response.status_code, response.json()
    except ValueError:
        return response.status_code, None
