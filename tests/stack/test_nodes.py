"""A head and two machines of two families: where rows run, what is full or gone, and sleep."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from openai.types import Batch

from shared.catalog import Catalog, Lane
from tests.containers import compose
from tests.eventually import wait_until
from tests.stack.engine import Engine
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
            "idle_seconds": 90,
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
    engine: Engine, images: dict[str, str], tmp_path_factory: pytest.TempPathFactory
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

    assert_answered(stack, chat, embeddings)
    assert (_engines(stack, H100), _engines(stack, L4)) == ({_app(CHAT)}, {_app(EMBED, "l4")})


def test_a_full_family_is_waited_for_and_then_the_next_one_is_taken(stack: Stack) -> None:
    _keep_awake(stack, CHAT)
    batch = stack.submit(chat_lines(300, tokens=48, model=ROAMING), "/v1/chat/completions")

    stack.until(batch, lambda _: _waits_for(stack, batch) == "no_room")
    waiting = stack.explain(batch)["summary"]
    stack.until(batch, has_begun)
    running_on = stack.explain(batch)
    ended = stack.ended(batch)

    assert waiting.startswith("Pool h100 has no room for the engine; the next pool is asked in ")
    assert running_on["lane"]["runs_on"] == "l4"
    assert "On pool l4, because pool h100 has no room for the engine." in running_on["summary"]
    assert_whole(stack, ended, 300)
    assert _app(ROAMING, "l4") in _engines(stack, L4)


def test_an_idle_engine_goes_and_comes_back(stack: Stack) -> None:
    wait_until(lambda: _app(ROAMING, "l4") not in _engines(stack, L4), timeout=COLD_SECONDS)

    batch = stack.submit(chat_lines(10, model=ROAMING), "/v1/chat/completions")

    assert_whole(stack, stack.ended(batch), 10)


def test_a_machine_that_dies_has_its_work_taken_over(stack: Stack) -> None:
    wait_until(lambda: not _engines(stack, H100) - {_app(ROAMING)}, timeout=COLD_SECONDS)
    wait_until(lambda: _app(ROAMING, "l4") not in _engines(stack, L4), timeout=COLD_SECONDS)
    batch = stack.submit(chat_lines(1500, tokens=48, model=ROAMING), "/v1/chat/completions")
    stack.until(batch, has_begun)
    assert _engines(stack, H100) == {_app(ROAMING)}

    stack.engine.run("kill", stack.container(H100))
    ended = stack.ended(batch)

    assert_whole(stack, ended, 1500)
    assert _app(ROAMING, "l4") in _engines(stack, L4)


def test_an_absent_family_is_waited_for_and_then_the_next_one_is_taken(stack: Stack) -> None:
    assert stack.health(H100) == "down"
    wait_until(lambda: _app(ROAMING, "l4") not in _engines(stack, L4), timeout=COLD_SECONDS)

    batch = stack.submit(chat_lines(10, model=ROAMING), "/v1/chat/completions")
    stack.until(batch, lambda _: _waits_for(stack, batch) == "no_room")

    assert_whole(stack, stack.ended(batch), 10)


def test_a_machine_that_comes_back_is_used_again(stack: Stack) -> None:
    wait_until(lambda: _app(ROAMING, "l4") not in _engines(stack, L4), timeout=COLD_SECONDS)
    stack.engine.run("start", stack.container(H100))
    stack.wait_well(H100)

    batch = stack.submit(chat_lines(10, model=ROAMING), "/v1/chat/completions")

    assert_whole(stack, stack.ended(batch), 10)
    assert _engines(stack, H100) == {_app(ROAMING)}


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


def _keep_awake(stack: Stack, model: str) -> None:
    """An engine that has just answered is there for its idle time."""
    assert_answered(stack, stack.submit(chat_lines(1, model=model), "/v1/chat/completions"))


def _waits_for(stack: Stack, batch: Batch) -> str | None:
    waiting = stack.explain(batch)["waits_for"]
    return None if waiting is None else str(waiting["code"])
