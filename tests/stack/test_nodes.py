"""A head and two machines of two families: where rows run, what is full or gone, and sleep."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml
from openai.types import Batch

from shared.catalog import Catalog, Lane
from tests.containers import compose
from tests.eventually import wait_until
from tests.stack.engine import ContainerEngine
from tests.stack.stack import (
    CHAT,
    COLD_SECONDS,
    EMBED,
    Stack,
    assert_answered,
    assert_whole,
    chat_lines,
    embedding_lines,
    has_begun,
    running,
)

#: Prefers the family of which there is one machine, and has a second choice.
ROAMING = "roaming"
_SPILL_SECONDS = 15
_IDLE_SECONDS = 20
_ENDLESS_ROWS = 50_000
_CPU = {"VLLM_CPU_KVCACHE_SPACE": "1"}
_SMALL = {"max_model_len": 1024, "max_num_seqs": 64, "enforce_eager": True}
CATALOG: dict[str, Any] = {
    "pools": {
        "h100": {"resources": {"CPU": 1, "h100": 1}},
        "l4": {"resources": {"CPU": 1, "l4": 1}},
    },
    "models": {
        CHAT: {
            "source": f"/models/{CHAT}",
            "pools": ["h100"],
            "idle_seconds": _IDLE_SECONDS,
            "engine": _SMALL,
            "env": _CPU,
        },
        EMBED: {
            "source": f"/models/{EMBED}",
            "pools": ["l4"],
            "engine": {"runner": "pooling", "max_num_seqs": 128, "enforce_eager": True},
            "env": _CPU,
        },
        ROAMING: {
            "source": f"/models/{CHAT}",
            "pools": ["h100", "l4"],
            "spill_seconds": _SPILL_SECONDS,
            "idle_seconds": _IDLE_SECONDS,
            "engine": _SMALL,
            "env": _CPU,
        },
    },
}
H100, L4 = "worker", "worker-l4"


@pytest.fixture(scope="module")
def stack(
    engine: ContainerEngine, images: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    assert images
    folder = tmp_path_factory.mktemp("nodes")
    file = folder / "nodes.yaml"
    file.write_text(yaml.safe_dump({"services": _two_families()}))
    with running(Stack(engine, folder, CATALOG, [file])) as stack:
        yield stack


def test_each_model_runs_on_its_family(stack: Stack) -> None:
    chat = stack.submit(chat_lines(20), "/v1/chat/completions")
    embeddings = stack.submit(embedding_lines(["hello", "goodbye"]), "/v1/embeddings")

    _wait_for_engines(stack, H100, {_app(CHAT)})
    _wait_for_engines(stack, L4, {_app(EMBED, "l4")})
    assert_answered(stack, chat, embeddings)


def test_a_full_family_is_waited_for_and_then_the_next_one_is_taken(stack: Stack) -> None:
    with _at_work(stack, CHAT):
        batch = stack.submit(chat_lines(300, tokens=48, model=ROAMING), "/v1/chat/completions")
        waiting = _why_it_waits(stack, batch, "no_room")
        wait_until(lambda: _app(ROAMING, "l4") in _engines(stack, L4), timeout=COLD_SECONDS)
        stack.until(batch, has_begun)
        # Between two slices, none runs.
        _wait_until_it_says(
            stack, batch, "On pool l4, because pool h100 has no room for the engine."
        )
        running_on = stack.explain(batch)
        ended = stack.ended(batch)

    assert waiting.startswith("Pool h100 has no room for the engine; the next pool is asked in ")
    assert running_on["lane"]["runs_on"] == "l4"
    assert_whole(stack, ended, 300)


def test_an_idle_engine_goes_and_comes_back(stack: Stack) -> None:
    _wait_until_gone(stack, ROAMING)

    batch = stack.submit(chat_lines(10, model=ROAMING), "/v1/chat/completions")

    assert_whole(stack, stack.ended(batch), 10)


def test_a_machine_that_dies_has_its_work_taken_over(stack: Stack) -> None:
    _wait_until_gone(stack, CHAT)
    _wait_until_gone(stack, ROAMING)
    batch = stack.submit(chat_lines(1500, tokens=48, model=ROAMING), "/v1/chat/completions")
    _wait_for_engines(stack, H100, {_app(ROAMING)})
    stack.until(batch, has_begun)

    stack.engine.run("kill", stack.container(H100))

    wait_until(lambda: _app(ROAMING, "l4") in _engines(stack, L4), timeout=COLD_SECONDS)
    assert_whole(stack, stack.ended(batch), 1500)


def test_an_absent_family_is_waited_for_and_then_the_next_one_is_taken(stack: Stack) -> None:
    assert stack.health(H100) == "down"
    _wait_until_gone(stack, ROAMING)

    batch = stack.submit(chat_lines(10, model=ROAMING), "/v1/chat/completions")

    # Until Ray has given it up, the engine of the machine that has died is the reason.
    wait_until(lambda: "h100" in _why_it_waits(stack, batch, "no_room"), timeout=COLD_SECONDS)
    assert_whole(stack, stack.ended(batch), 10)


def test_a_machine_that_comes_back_is_used_again(stack: Stack) -> None:
    _wait_until_gone(stack, ROAMING)
    stack.engine.run("start", stack.container(H100))
    stack.wait_well(H100)

    batch = stack.submit(chat_lines(10, model=ROAMING), "/v1/chat/completions")

    _wait_for_engines(stack, H100, {_app(ROAMING)})
    assert_whole(stack, stack.ended(batch), 10)


def _two_families() -> dict[str, Any]:
    """The worker of compose.yaml as a machine of one family, and another one like it."""
    worker = compose.load(compose.FILE.read_text())["services"]["worker"]
    join = [*(part for part in worker["command"] if "labels" not in part and "cpus" not in part)]
    join.append("--num-cpus=8")
    other = copy.deepcopy(worker)
    other["command"] = [*join, "--labels=pool=l4", '--resources={"l4": 2}']
    return {
        H100: {"command": [*join, "--labels=pool=h100", '--resources={"h100": 1}']},
        L4: other,
    }


def _app(model: str, pool: str = "h100") -> str:
    """The engine of a model on a pool, as its process is called."""
    return Catalog.model_validate(CATALOG).fingerprint(Lane(model, pool))


def _engines(stack: Stack, service: str) -> set[str]:
    """The fingerprints of the engines that run on this machine."""
    container = stack.container(service)
    if not stack.look(container)["State"]["Running"]:
        return set()
    titles = stack.engine.ask("top", container, "-eo", "pid,args").splitlines()
    known = {
        _app(name, pool) for name, entry in CATALOG["models"].items() for pool in entry["pools"]
    }
    return {one for one in known for title in titles if f"{one}:engine" in title}


def _wait_for_engines(stack: Stack, service: str, expected: set[str]) -> None:
    """Return once exactly these engines run on the machine."""
    wait_until(lambda: _engines(stack, service) == expected, timeout=COLD_SECONDS)


def _wait_until_gone(stack: Stack, model: str) -> None:
    """Return once no machine has an engine of the model."""
    apps = {_app(model, pool) for pool in CATALOG["models"][model]["pools"]}
    wait_until(
        lambda: not apps & (_engines(stack, H100) | _engines(stack, L4)), timeout=COLD_SECONDS
    )


@contextmanager
def _at_work(stack: Stack, model: str) -> Iterator[None]:
    """The model's engine has more to do than any test takes, until the block ends."""
    lines = chat_lines(_ENDLESS_ROWS, tokens=128, model=model)
    batch = stack.submit(lines, "/v1/chat/completions")
    stack.until(batch, has_begun)
    try:
        yield
    finally:
        stack.client.batches.cancel(batch.id)
        assert stack.ended(batch).status == "cancelled"


def _wait_until_it_says(stack: Stack, batch: Batch, sentence: str) -> None:
    wait_until(lambda: sentence in stack.explain(batch)["summary"], timeout=60)


def _why_it_waits(stack: Stack, batch: Batch, code: str) -> str:
    """What `explain` says as soon as this is what the batch waits for."""
    summaries = []

    def is_it() -> bool:
        explained = stack.explain(batch)
        summaries.append(str(explained["summary"]))
        return (explained["waits_for"] or {}).get("code") == code

    wait_until(is_it, timeout=COLD_SECONDS)
    return summaries[-1]
