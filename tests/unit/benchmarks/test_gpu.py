import json
import math
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.figures import bounded, compared
from benchmarks.gpu import __main__ as benchmark
from benchmarks.gpu import card
from benchmarks.gpu.load import watched
from benchmarks.gpu.models import MODELS
from benchmarks.gpu.plan import EACH, EMBEDS, KINDS, SHARED, TENSOR, WIDE, Plan
from benchmarks.gpu.results import CaseResult, Results
from benchmarks.gpu.texts import between, equal, sharing
from shared.card_share import share_problems
from shared.catalog import Catalog


def plan(**changes: Any) -> Plan:
    facts: dict[str, Any] = {
        "sources": {name: Path("/models") / name for name in MODELS},
        "card": "H100",
        "scale": 1.0,
        "turns": 2,
        "replicas": 4,
        "price_per_hour": 3.0,
    }
    return Plan(**(facts | changes))


def contents(rows: bytes) -> list[str]:
    return [json.loads(line)["body"]["messages"][0]["content"] for line in rows.splitlines()]


@pytest.mark.parametrize("name", ["H100", None])
def test_the_catalog_of_the_benchmark_is_one(name: str | None) -> None:
    catalog = Catalog.model_validate(plan(card=name).catalog())

    assert set(catalog.models) == set(KINDS) - {EACH, TENSOR}
    assert catalog.models[SHARED].max_replicas == 4
    assert catalog.models[WIDE].seats > catalog.models["qwen-0.5b"].seats


def test_all_engines_of_the_benchmark_find_room_on_one_card() -> None:
    catalog = Catalog.model_validate(plan().catalog())
    pools = {model.name: catalog.pools[model.pools[0]] for model in catalog.models.values()}
    taken = sum(
        pools[model.name].resources["GPU"] * model.max_replicas for model in catalog.models.values()
    )
    problems = [
        problem
        for model in catalog.models.values()
        for problem in share_problems(pools[model.name], model.engine)
    ]

    assert taken <= 1
    assert problems == []


def test_of_several_cards_each_has_one_engine_of_the_large_model_beside_the_others() -> None:
    catalog = Catalog.model_validate(plan(cards=2).catalog())
    [pool] = catalog.models[EACH].pools

    others = sum(
        catalog.pools[catalog.models[name].pools[0]].resources["GPU"]
        * catalog.models[name].max_replicas
        for name in (*MODELS, EMBEDS)
    )
    part = catalog.pools[pool].resources["GPU"]

    assert set(catalog.models) == set(KINDS)
    assert catalog.models[EACH].max_replicas == 2
    assert 0.5 < part <= 1 - others


def test_only_engines_that_a_run_wants_are_there_from_its_beginning() -> None:
    catalog = Catalog.model_validate(plan(cards=2, early={EACH, SHARED}).catalog())

    early = {name: model.min_replicas for name, model in catalog.models.items()}
    assert {name: count for name, count in early.items() if count} == {EACH: 2, SHARED: 4}


def test_what_needs_whole_cards_is_run_alone() -> None:
    assert "cards-tensor" not in benchmark.cases_of((), 2)
    assert set(benchmark.cases_of((), 1)) == set(benchmark.CASES)
    assert list(benchmark.cases_of(("cards-tensor",), 2)) == ["cards-tensor"]
    with pytest.raises(SystemExit, match="needs several cards"):
        benchmark.cases_of(("cards-tensor",), 1)
    with pytest.raises(SystemExit, match="run it alone"):
        benchmark.cases_of(("cards", "cards-tensor"), 2)


def test_a_small_scale_has_fewer_rows_and_shorter_phases() -> None:
    small = plan(scale=0.01)

    assert (small.rows(10_000), small.rows(100)) == (100, 16)
    assert small.seconds(100) == 10


def test_no_two_rows_of_a_run_are_the_same() -> None:
    texts = contents(equal("m", 50, 40, 4)) + contents(equal("m", 50, 40, 4))

    assert len(set(texts)) == 100


def test_rows_that_share_beginnings_are_shuffled_and_end_alone() -> None:
    rows = sharing("m", prefixes=3, each=4, shared=100, own=20, tokens_out=8)
    begins = [text[:300] for text in contents(rows)]

    assert len(set(contents(rows))) == 12
    assert sorted(begins.count(one) for one in set(begins)) == [4, 4, 4]
    assert begins != sorted(begins)


def test_lengths_are_the_same_in_each_run_with_as_many_in_each_doubling() -> None:
    lengths = between(8, 512, 3000)
    doublings = [math.floor(math.log2(one / 8)) for one in lengths]

    assert lengths == between(8, 512, 3000)
    assert min(lengths) >= 8
    assert max(lengths) <= 512
    assert all(400 < doublings.count(one) < 600 for one in range(6))


def results(path: Path, *, scale: float = 1.0) -> Results:
    return Results(path, {"machine": {"card": "one"}, "scale": scale, "shapes": "real"})


def figure(value: float) -> Any:
    return compared("a", value, 2.0, unit="rows/s", goal=1.0, sense="at least")


def test_a_run_is_compared_with_the_last_one_on_such_a_card(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    results(path).keep("first", CaseResult(figures=[figure(3.0)]))

    again, other = results(path), results(path, scale=0.5)

    assert again.before(figure(4.0)) == 1.5
    assert again.before(bounded("b", 1.0, 0.0, unit="s", goal=None)) is None
    assert other.before(figure(4.0)) is None


def test_a_run_of_one_case_keeps_what_is_known_of_the_others(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    results(path).keep("first", CaseResult(figures=[figure(3.0)]))
    results(path).keep("second", CaseResult(error="It broke."))

    kept = json.loads(path.read_text())["cases"]

    assert kept["first"]["figures"][0]["value"] == 3.0
    assert kept["second"]["error"] == "It broke."


@pytest.mark.parametrize(
    ("name", "short"),
    [("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA A10G", "A10G"), ("Tesla T4", "T4"), (None, None)],
)
def test_rays_name_of_a_card_follows_from_nvidias(name: str | None, short: str | None) -> None:
    assert card.short_name(name) == short


@pytest.fixture
def nvidias_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a script in its place."""

    def become(script: str) -> None:
        command = tmp_path / "nvidia-smi"
        command.write_text(f"#!/bin/sh\n{script}\n")
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return become


def test_the_card_is_what_nvidias_command_says(nvidias_command: Callable[[str], None]) -> None:
    nvidias_command(
        'case "$*" in *-lms*) while :; do echo "40, 2048, 200.5"; sleep 0.05; done;; esac\n'
        'echo "NVIDIA H100 80GB HBM3, 580.65.06, 81920"'
    )

    with card.sampled() as samples:
        while not samples:
            time.sleep(0.01)

    assert card.facts() == {
        "card": "NVIDIA H100 80GB HBM3", "driver": "580.65.06", "memory_gib": 80.0, "cards": 1
    }  # fmt: skip
    assert samples[0] == (40.0, 2.0, 200.5)


def test_only_the_cards_that_cuda_shows_are_asked(
    nvidias_command: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    nvidias_command(
        'case "$*" in\n'
        '*--id=2\\ *-lms*) echo "40, 2048, 200.5"; exec sleep 9;;\n'
        '*--id=2,3*) for card in 2 3; do echo "NVIDIA H100, 580.65.06, 81920"; done;;\n'
        "esac"
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")

    with card.sampled() as samples:
        while not samples:
            time.sleep(0.01)

    assert card.facts()["cards"] == 2
    assert samples == [(40.0, 2.0, 200.5)]


def test_the_load_is_told_by_kind_of_process() -> None:
    with watched() as load:
        sum(range(10_000_000))

    assert load.seconds > 0
    assert sum(load.cores.values()) > 0
