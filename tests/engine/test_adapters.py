"""Tenants' LoRA adapters in a real engine: they come with the rows, and stay for a while."""

import itertools
import json
import shutil
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import httpx
import pytest

from cli.models.tiny import make_tiny_adapter
from shared.catalog import Catalog, Lane
from shared.doors import ADAPTER_MISSING, ADAPTERS_PATH, SALT_HEADER, TENANT_HEADER, Door
from shared.ordering.work import Work
from tests.adapters import an_adapter
from tests.engine.calls import tiny_catalog
from tests.engine.conftest import a_ray

pytest.importorskip("vllm", reason="needs the worker's dependencies")

pytestmark = [
    pytest.mark.timeout(600),
    # Ray and vLLM warn about themselves.
    pytest.mark.filterwarnings("ignore"),
]

LANE = Lane("tiny", "cpu")
GOOD, OTHER, BROKEN, MISFIT = (
    f"tiny:file-{word}" for word in ("good", "other", "broken", "misfit")
)
_CHAT = "/v1/chat/completions"
#: A replica keeps the answers of a batch's rows, and gives them again.
_batches = itertools.count()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from worker.engine_deployment import ensure_engine

    folder = tmp_path_factory.mktemp("models")
    poet = make_tiny_adapter(folder / "poet")
    torn = shutil.copytree(poet, folder / "torn")
    (torn / "adapter_model.safetensors").write_bytes(b"no weights")
    lora = {"torn": str(torn), "poet": str(poet), "lost": str(folder / "nowhere")}
    with a_ray(4):
        catalog: Catalog = tiny_catalog(
            folder, LANE, {"CPU": 1}, seats=8, live={}, tenant_lora={"kept": 2}, lora=lora
        )
        yield ensure_engine(catalog, LANE)


async def run(engine: str, *rows: tuple[str, str, bytes | None]) -> list[tuple[int, Any]]:
    """The statuses and answers of rows: model, tenant, and the file of the adapter if it has it."""
    import ray

    from worker.engine_client import EngineClient

    files = {archive: ray.put(archive) for _, _, archive in rows if archive is not None}
    batch = f"batch-{next(_batches)}"
    works = [
        Work(batch, at, tenant, 0, 0, 86_400, 50, adapter=archive and files[archive])
        for at, (_, tenant, archive) in enumerate(rows)
    ]
    lines = [
        json.dumps({"custom_id": "row", "url": _CHAT, "body": _body(model)}).encode()
        for model, _, _ in rows
    ]
    found: dict[int, Any] = {}
    async with aclosing(EngineClient(engine).run_lines(lines, works)) as groups:
        async for group in groups:
            found |= {at: (result[0], json.loads(result[1])) for at, result in group}
    return [found[at] for at in range(len(rows))]


def _body(model: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Tell me about trains, please."}]
    return {"model": model, "messages": messages, "max_tokens": 16, "temperature": 0}


def _text(answer: tuple[int, Any]) -> str:
    assert answer[0] == 200, answer[1]
    text: str = answer[1]["choices"][0]["message"]["content"]
    return text


async def _loaded(engine: str) -> set[tuple[str, str]]:
    from worker.engine_client import EngineClient

    return await EngineClient(engine).adapters()


async def test_rows_run_with_their_tenants_adapters_and_bad_ones_fail_alone(engine: str) -> None:
    good, other = an_adapter(seed=3), an_adapter(seed=4)
    misfit, broken = an_adapter(width=256), b"no archive"

    [base] = await run(engine, ("tiny", "acme", None))
    first, second, cut, wide, foreign, unknown, again = await run(
        engine,
        (GOOD, "acme", good),
        (OTHER, "acme", other),
        (BROKEN, "acme", broken),
        (MISFIT, "acme", misfit),
        # Whoever looks for the file finds none in another tenant's place.
        (GOOD, "umbrella", None),
        ("tiny:file-none", "acme", None),
        (GOOD, "acme", good),
    )

    texts = [_text(one) for one in (base, first, second)]
    assert len(set(texts)) == 3
    assert _text(again) == texts[1]
    assert first[1]["model"] == GOOD
    for status, answer in (cut, wide):
        assert (status, answer["error"]["code"]) == (400, "invalid_adapter")
    assert "is not a tar archive" in cut[1]["error"]["message"]
    assert "/tmp" not in wide[1]["error"]["message"]
    assert foreign[0] == unknown[0] == 404
    assert foreign[1]["error"] == {
        **unknown[1]["error"],
        "message": f"The model `{GOOD}` does not exist.",
    }
    # The engine lives, and answers as before.
    assert _text((await run(engine, ("tiny", "acme", None)))[0]) == texts[0]


async def test_adapters_of_the_catalog_that_cannot_be_loaded_cost_their_own_rows_alone(
    engine: str,
) -> None:
    base, poet, torn, lost, own = await run(
        engine,
        ("tiny", "acme", None),
        ("poet", "acme", None),
        ("torn", "acme", None),
        ("lost", "acme", None),
        (GOOD, "acme", an_adapter(seed=3)),
    )

    assert len({_text(one) for one in (base, poet, own)}) == 3
    for status, answer in (torn, lost):
        assert (status, answer["error"]["code"]) == (400, "invalid_adapter")
        assert answer["error"]["message"].startswith("The adapter cannot be loaded: ")
        assert "/models" not in answer["error"]["message"]


async def test_rows_without_an_adapter_are_as_they_are_alone(engine: str) -> None:
    files = {f"tiny:file-b{number}": an_adapter(seed=10 + number) for number in range(2)}
    base = ("tiny", "acme", None)
    alone = [await run(engine, row) for row in (base, *((n, "acme", f) for n, f in files.items()))]

    mixed = [base, *((name, "acme", file) for name, file in files.items())] * 2
    together = await run(engine, *mixed)

    assert [_text(one) for one in together] == [_text(answer) for [answer] in alone] * 2


async def test_an_adapter_gives_way_to_others_and_comes_back(engine: str) -> None:
    names = [f"tiny:file-a{number}" for number in range(3)]
    files = [an_adapter(seed=number) for number in range(3)]

    alone = [
        await run(engine, (name, "acme", file)) for name, file in zip(names, files, strict=True)
    ]
    first = [_text(answer) for [answer] in alone]
    assert {name for _, name in await _loaded(engine)} == {*names[1:]}
    # More at once than there are places.
    rows = [(names[at % 3], "acme", files[at % 3]) for at in range(9)]
    second = [_text(one) for one in await run(engine, *rows)]

    assert second == first * 3
    assert len(await _loaded(engine)) == 2


async def test_a_deleted_adapter_is_unloaded(engine: str) -> None:
    from worker.engine_client import EngineClient

    file = an_adapter(seed=5)
    text = _text((await run(engine, ("tiny:file-gone", "acme", file)))[0])
    assert ("acme", "tiny:file-gone") in await _loaded(engine)

    await EngineClient(engine).forget_adapters(["tiny:file-gone"])

    assert ("acme", "tiny:file-gone") not in await _loaded(engine)
    assert (await run(engine, ("tiny:file-gone", "acme", None)))[0][0] == 404
    assert _text((await run(engine, ("tiny:file-gone", "acme", file)))[0]) == text


async def test_a_live_call_says_that_the_adapter_is_to_be_brought(engine: str) -> None:
    from worker.engine_client import EngineClient

    [batch] = await run(engine, ("tiny:file-live", "acme", an_adapter(seed=6)))
    await EngineClient(engine).forget_adapters(["tiny:file-live"])
    [door] = await EngineClient(engine).doors()

    async with _at(door, "acme") as acme, _at(door, "umbrella") as umbrella:
        body = _body("tiny:file-live")
        before = await acme.post(_CHAT, json=body)
        place = f"{ADAPTERS_PATH}tiny%3Afile-live"
        bad = await acme.put(place, content=an_adapter(width=256))
        brought = await acme.put(place, content=an_adapter(seed=6))
        after = await acme.post(_CHAT, json=body)
        foreign = await umbrella.post(_CHAT, json=body)

    assert before.status_code == foreign.status_code == ADAPTER_MISSING
    assert (bad.status_code, brought.status_code) == (400, 200)
    assert after.json()["choices"][0]["message"]["content"] == _text(batch)


def _at(door: Door, tenant: str) -> httpx.AsyncClient:
    headers = {
        "authorization": f"Bearer {door.token}",
        TENANT_HEADER.decode(): tenant,
        SALT_HEADER.decode(): "",
        "x-request-id": "call",
    }
    return httpx.AsyncClient(
        base_url=f"http://{door.host}:{door.port}", headers=headers, timeout=120
    )
