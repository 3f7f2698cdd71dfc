"""The gateway against its own OpenAPI document."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.openapi_words import OBJECTS
from tests.contract.conftest import MODEL, Caller, rows
from tests.servers import absent

_CONFIGURATION = Path(__file__).with_name("schemathesis.toml")
#: Calls made up for each operation, and sequences of calls; `make fuzz` asks for more.
_EXAMPLES = os.environ.get("FUZZ_EXAMPLES", "25")
#: The same calls every time, but new ones for `make fuzz`, whose output names the seed.
_REPEATABLE = () if "FUZZ_EXAMPLES" in os.environ else ("--generation-deterministic",)
#: Seconds.
_PATIENCE = 450 + 6 * int(_EXAMPLES)


@pytest.mark.timeout(_PATIENCE + 60)
def test_no_made_up_call_contradicts_the_document(acme: Caller, tmp_path: Path) -> None:
    if importlib.util.find_spec("schemathesis") is None:
        absent("schemathesis", "PYTHONPATH")
    (tmp_path / "openapi.json").write_text(json.dumps(_with_real_examples(acme)))

    ended = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "--no-color"),
            *("--config-file", str(_CONFIGURATION)),
            *("run", "openapi.json", "--url", acme.yard.url, "--max-examples", _EXAMPLES),
            *_REPEATABLE,
        ],
        env={**os.environ, "CONTRACT_KEY": acme.key},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )

    # Shown with `-rP`, and where it fails.
    print(ended.stdout, ended.stderr)  # noqa: T201  # as above
    assert ended.returncode == 0
    for phase in ("Examples", "Coverage", "Fuzzing", "Stateful"):
        assert phase in ended.stdout
    # Not by refusing everything: there are more batches than the one made here.
    assert len(acme.openai.batches.list().data) > 1


def _with_real_examples(caller: Caller) -> dict[str, Any]:
    """The served document, whose examples name objects that exist."""
    # An ended one: whoever watches it comes to an end as well.
    batch = caller.run(rows("one"))
    text: str = caller.http.get("/openapi.json").text
    for example, real in (
        (OBJECTS["File"]["id"], caller.upload(rows("one"))),
        (OBJECTS["Batch"]["id"], batch["id"]),
        (OBJECTS["Model"]["id"], MODEL),
    ):
        text = text.replace(example, real)
    document: dict[str, Any] = json.loads(text)
    body = document["paths"]["/v1/batches"]["post"]["requestBody"]["content"]["application/json"]
    # Not the one that the example of a deletion deletes.
    body["example"]["input_file_id"] = caller.upload(rows("two"))
    return document
