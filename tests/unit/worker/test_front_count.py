import json
import os
from pathlib import Path
from typing import Any

import pytest

from shared.catalog import Model, Pool
from worker.engine_placement import processors_of
from worker.engine_variables import FRONTS_VARIABLE, SHARE_VARIABLE
from worker.front_count import BY_ITSELF, asked_fronts, config_of, fronts_here, fronts_of

CARD = Pool(accelerator_type="H100")
SMALL = {
    "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "vocab_size": 151_936,
}  # fmt: skip
LARGE = {
    "hidden_size": 3584, "intermediate_size": 18_944, "num_hidden_layers": 28,
    "vocab_size": 152_064,
}  # fmt: skip


def model(**fields: Any) -> Model:
    return Model.model_validate({"name": "m", "pools": ["p"], **fields})


@pytest.mark.parametrize(
    ("fields", "config", "fronts"),
    [
        ({}, SMALL, 4),
        ({}, LARGE, 1),
        ({}, SMALL | {"num_experts": 64}, 1),
        ({}, SMALL | {"vision_config": {}}, 1),
        ({}, {}, 1),
        ({}, None, 1),
        ({"tasks": ["embed"]}, SMALL, 3),
        ({"tasks": ["embed"]}, LARGE, 3),
    ],
)
def test_small_models_and_those_that_do_not_generate_have_several(
    fields: dict[str, Any], config: dict[str, Any] | None, fronts: int
) -> None:
    assert fronts_of(model(**fields), config, processors=16) == fronts


@pytest.mark.parametrize(("processors", "fronts"), [(1, 1), (3, 1), (4, 2), (16, 4), (128, 4)])
def test_each_has_processors(processors: int, fronts: int) -> None:
    assert fronts_of(model(), SMALL, processors) == fronts


@pytest.mark.parametrize(
    ("fields", "pool", "asked"),
    [
        ({}, CARD, BY_ITSELF),
        ({}, Pool(resources={"GPU": 0.25}), BY_ITSELF),
        ({}, Pool(resources={"CPU": 4}), 1),
        ({"tenant_lora": {}}, CARD, 1),
        ({"fronts": 1}, CARD, 1),
        ({"fronts": 6}, Pool(resources={"CPU": 4}), 6),
    ],
)
def test_what_the_catalog_says_comes_first(fields: dict[str, Any], pool: Pool, asked: int) -> None:
    assert asked_fronts(model(**fields), pool) == asked


def test_no_processors_are_kept_for_those_that_nobody_asked_for() -> None:
    kept = [processors_of(model(**fields), CARD) for fields in ({}, {"fronts": 1}, {"fronts": 4})]

    assert kept == [1, 1, 5]


def test_a_replica_decides_by_the_files_of_its_model_and_its_part_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setenv(FRONTS_VARIABLE, str(BY_ITSELF))

    alone = fronts_here(model(source=str(tmp_path)))
    monkeypatch.setenv(SHARE_VARIABLE, "0.25")
    sharing = fronts_here(model(source=str(tmp_path)))
    monkeypatch.setenv(FRONTS_VARIABLE, "3")

    assert (alone, sharing, fronts_here(model(source=str(tmp_path)))) == (4, 2, 3)


@pytest.mark.parametrize("source", ["nobody/has-this", "a/b/c", "no such name"])
def test_without_a_configuration_at_hand_there_is_none(source: str) -> None:
    assert config_of(source) is None
