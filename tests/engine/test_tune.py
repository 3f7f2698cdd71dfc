"""`batchyard tune` on a real engine of this machine, in a short form."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.__main__ import app
from cli.models.tiny import make_tiny_chat_model
from shared.catalog_file import load_catalog
from tests.processes import below_this

pytest.importorskip("vllm", reason="needs the worker's dependencies")

pytestmark = [
    pytest.mark.timeout(900),
    # Ray and vLLM warn about themselves.
    pytest.mark.filterwarnings("ignore"),
]

_CATALOG = """\
# ours
pools:
  cpu: {{resources: {{CPU: 1}}}}
models:
  tiny:
    source: {folder}
    pools: [cpu]
    engine: {{max_model_len: 256, max_num_seqs: 2, max_num_batched_tokens: 512, dtype: float32,
             enforce_eager: true}}
    env: {{VLLM_CPU_KVCACHE_SPACE: 1, TORCH_COMPILE_DISABLE: 1}}
"""


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    make_tiny_chat_model(tmp_path / "model")
    path = tmp_path / "catalog.yaml"
    path.write_text(_CATALOG.format(folder=tmp_path / "model"))
    return path


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    bodies = [
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": f"row {n}"}],
            "max_tokens": 16,
            "ignore_eos": True,
        }
        for n in range(40)
    ]
    lines = [
        {"custom_id": str(n), "method": "POST", "url": "/v1/chat/completions", "body": body}
        for n, body in enumerate(bodies)
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


@pytest.mark.on_demand
def test_the_best_that_was_tried_is_written_and_no_engine_stays(catalog: Path, rows: Path) -> None:
    before = load_catalog(catalog)
    arguments = ["tune", "tiny", "--rows", str(rows), "--catalog", str(catalog)]

    # On a slow machine the time is over after the first try.
    done = CliRunner().invoke(app, [*arguments, "--minutes", "1.5", "--json"])

    assert done.exit_code == 0, done.output
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    tried, best = [one for one in events if one["event"] == "setting"], events[-1]
    assert tried[0]["seats"] == 2
    assert best["event"] == "best"
    assert best["tried"] == len(tried)
    assert tried[0]["rows_per_second"] == best["before"] > 0
    # Two runs of the same differ by as much.
    assert best["rows_per_second"] > max(one["rows_per_second"] or 0 for one in tried) / 1.04
    after = load_catalog(catalog)
    if best["rows_per_second"] > best["before"]:
        assert after.models["tiny"].engine["max_num_seqs"] == best["seats"]
        assert f"{best['rows_per_second']:.1f} rows/s" in catalog.read_text()
    else:
        assert after == before
    assert after.models["tiny"].source == before.models["tiny"].source
    assert catalog.read_text().startswith("# ours\n")
    assert not below_this("EngineCore")


def test_what_the_operator_has_to_fix_leaves_the_catalog_alone(catalog: Path, rows: Path) -> None:
    before = catalog.read_text()
    rows.write_text("no request\n")

    done = CliRunner().invoke(
        app, ["tune", "tiny", "--rows", str(rows), "--catalog", str(catalog), "--json"]
    )

    assert done.exit_code != 0
    assert "no line is a request for the model `tiny`" in str(done.exception)
    assert catalog.read_text() == before
