import json
from pathlib import Path

import pytest

from shared.catalog import Catalog, Model, Pool
from shared.errors import SetupError
from worker import tune
from worker.tune import Count, Rate, lacking, lines_for


def test_rows_that_failed_are_not_answered() -> None:
    count = Count()
    count.note([(0, (200, b"{}")), (1, (500, b"{}"))], is_warm=False)
    count.note([(0, (200, b"{}", 7)), (1, (400, b"{}")), (2, (200, b"{}", 7))], is_warm=True)

    assert count.rate(4) == Rate(0.5, failed=2)


def test_an_engine_that_only_refuses_has_no_rate() -> None:
    count = Count()
    count.note([(0, (400, b"{}")), (1, (400, b"{}"))], is_warm=False)

    with pytest.raises(SetupError, match="batchyard check"):
        count.rate(4)


def test_an_engine_that_was_too_slow_for_any_row_has_none() -> None:
    assert Count().rate(4) == Rate(0, failed=0)


def test_the_first_rows_of_the_model_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "_MOST_LINES", 2)
    entry = {"source": "somewhere", "pools": ["cpu"]}
    catalog = Catalog.model_validate(
        {"pools": {"cpu": {"resources": {"CPU": 1}}}, "models": {"m": entry}}
    )
    lines = [json.dumps({"body": {"model": model}}) for model in ("m", "other", "m", "m")]
    path = tmp_path / "rows.jsonl"
    path.write_text("\r\n".join(["no request", *lines]), newline="")

    found = lines_for(catalog.models["m"], path)

    assert found == [lines[0].encode()] * 2


@pytest.mark.parametrize(
    ("pool", "told"),
    [
        (Pool(resources={"GPU": 1}), "{GPU: 2}"),
        (Pool(accelerator_type="H100"), "{GPU: 2, accelerator_type:H100: 0.002}"),
    ],
)
def test_a_machine_that_lacks_the_pools_cards_starts_no_engine(pool: Pool, told: str) -> None:
    model = Model(name="m", pools=("any",), fronts=1, engine={"tensor_parallel_size": 2})
    machine = {"CPU": 1024.0, "memory": 1e9}

    assert told in (lacking(model, pool, machine) or "")
    assert "GPU: 2" in (lacking(model, pool, {**machine, "GPU": 1, "accelerator_type:L4": 1}) or "")
    assert lacking(model, pool, {**machine, "GPU": 2, "accelerator_type:H100": 1}) is None


def test_a_machine_without_cards_has_the_engines_of_a_pool_of_processors() -> None:
    model = Model(name="m", pools=("any",))

    assert lacking(model, Pool(resources={"CPU": 64}), {"CPU": 1024.0}) is None
