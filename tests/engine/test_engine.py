"""Engines on a local Ray: they answer as `vllm serve` does, and heal when they die.

The tests share engines and run in their order, because each start costs about half a minute. They
compare one line of each feature of `tests/engine/compatibility`, and all of them where `-m
on_demand` asks for that.
"""

import asyncio
import base64
import json
import random
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import structlog

from shared.catalog import Catalog, Lane
from tests.answers import answers
from tests.engine.compatibility.comparison import Outcome, failing_code, outcome, written
from tests.engine.compatibility.line import ADAPTER, EMBEDDER, JUDGE, SEER, WRITER, Line
from tests.engine.compatibility.line import chat as compatibility_chat
from tests.engine.compatibility.lines import LINES, some
from tests.engine.compatibility.models import (
    POOL,
    catalog_content,
    make_models,
    make_vision_model,
)
from tests.engine.compatibility.page import OUTCOMES, outcomes_text, read_outcomes
from tests.engine.compatibility.vllm_alone import (
    Answers,
    answers_of_run_batch,
    answers_of_serve,
    ends_run_batch,
)
from tests.engine.conftest import a_ray
from tests.engine.deaths import answer_next, engine_core, fronts, kill_core, replica_of
from tests.engine.odd_requests import odd_text
from tests.eventually import eventually

pytest.importorskip("vllm", reason="needs the worker's dependencies")

pytestmark = [
    pytest.mark.timeout(600),
    # Ray and vLLM warn about themselves.
    pytest.mark.filterwarnings("ignore"),
]

IDLE_SECONDS = 10


class Served(NamedTuple):
    """What vLLM answers without us, by the line's id."""

    lines: Sequence[Line]
    serve: Answers
    #: Only where all lines are compared.
    run_batch: Answers

    def of(self, engine: str) -> list[Line]:
        """The lines of one model."""
        return [line for line in self.lines if line.engine == engine]


#: Where a whole run says what it found.
_FOUND = Path(__file__).parents[2] / "build/engine-outcomes.json"
_PLAIN = compatibility_chat("messages", "plain").id
_ADAPTED = compatibility_chat("adapters (LoRA)", "by name", model=ADAPTER).id
_ANY = {"input": "a train"}


def chat(**fields: Any) -> tuple[str, dict[str, Any]]:
    one = compatibility_chat("", "", **{"max_tokens": 12, **fields})
    return one.path, one.body


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def catalog(folder: Path) -> Catalog:
    content = catalog_content(folder, idle_seconds=IDLE_SECONDS)
    content["models"]["ghost"] = {"source": "/nowhere/ghost", "pools": [POOL]}
    return Catalog.model_validate(content)


@pytest.fixture(scope="module")
def is_whole(request: pytest.FixtureRequest) -> bool:
    """Whether all lines are compared."""
    return any(item.get_closest_marker("on_demand") for item in request.session.items)


@pytest.fixture(scope="module")
def lines(is_whole: bool) -> Sequence[Line]:
    # Whatever fails names its line.
    return LINES if is_whole else some(secrets.randbits(32), {_PLAIN, _ADAPTED})


@pytest.fixture(scope="module")
def served(folder: Path, lines: Sequence[Line], is_whole: bool) -> Served:
    """What vLLM answers alone. It is gone before the engines under test start."""
    found = Served(lines, {}, {})
    if is_whole:
        make_vision_model(folder)

    def ask(engine: str) -> None:
        found.serve.update(answers_of_serve(folder, engine, found.of(engine)))
        if is_whole:
            taken = [line for line in found.of(engine) if not ends_run_batch(line)]
            found.run_batch.update(answers_of_run_batch(folder, engine, taken))

    # Two cores start two of them in the time of one.
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(ask, dict.fromkeys(one.engine for one in lines)))
    return found


@pytest.fixture(scope="module")
def ray(served: Served) -> Iterator[Any]:
    assert served
    with a_ray(16) as ray:
        yield ray


@pytest.fixture(scope="module")
def mini(ray: Any, catalog: Catalog) -> "Future[str]":
    """The application of the embedding model's engine, once it has answered a first row."""
    from worker.engine_client import EngineClient
    from worker.engine_deployment import ensure_engine

    assert ray.is_initialized()
    name = ensure_engine(catalog, Lane("org/mini", "cpu"))

    def warm_up() -> str:
        asyncio.run(
            answers(EngineClient(name), [line("/v1/embeddings", {**_ANY, "model": EMBEDDER})])
        )
        return name

    return _meanwhile(warm_up)


@pytest.fixture(scope="module")
def judge(ray: Any, mini: "Future[str]", catalog: Catalog) -> "Future[str]":
    """The application of the engine that compares texts, once it has answered a first row."""
    from worker.engine_client import EngineClient
    from worker.engine_deployment import ensure_engine

    assert ray.is_initialized()
    name = ensure_engine(catalog, Lane("tiny-judge", "cpu"))

    def warm_up() -> str:
        mini.result()
        asyncio.run(answers(EngineClient(name), [line("/classify", {**_ANY, "model": JUDGE})]))
        return name

    return _meanwhile(warm_up)


@pytest.fixture(scope="module")
def ghost(ray: Any, catalog: Catalog) -> "Future[str]":
    """The application of a model that does not exist, once Serve has given up its engine."""
    from worker.engine_client import EngineClient
    from worker.engine_deployment import ensure_engine
    from worker.engine_errors import EngineFailedError

    assert ray.is_initialized()
    name = ensure_engine(catalog, Lane("ghost", "cpu"))

    def fail() -> str:
        with pytest.raises(EngineFailedError, match="/nowhere/ghost does not exist"):
            asyncio.run(answers(EngineClient(name), [line(*chat(model="ghost"))]))
        return name

    return _meanwhile(fail)


def _meanwhile(work: Callable[[], str]) -> "Future[str]":
    """Begin it in a thread: the start of an engine keeps one core busy, and there are two."""
    threads = ThreadPoolExecutor(1)
    future = threads.submit(work)
    threads.shutdown(wait=False)
    return future


@pytest.fixture(scope="module")
def tiny(ray: Any, mini: "Future[str]", catalog: Catalog) -> str:
    """The application of the chat model's engine, with no replica at first."""
    from worker.engine_deployment import ensure_engine

    assert ray.is_initialized()
    assert not mini.cancelled()  # starts meanwhile
    return ensure_engine(catalog, Lane("tiny-chat", "cpu"))


def line(url: str, body: Any, **fields: Any) -> bytes:
    return json.dumps(
        {"custom_id": "row-1", "method": "POST", "url": url, "body": body, **fields}
    ).encode()


async def assert_same_outcomes(
    app_name: str, engine: str, catalog: Catalog, served: Served
) -> None:
    """What the lines of this model come to is what is known of them."""
    found = await outcomes(app_name, engine, catalog, served)
    known = read_outcomes()

    # What `vllm run-batch` makes of them is asked in a whole run.
    assert found == {
        name: known[name]._replace(run_batch=one.run_batch, serve=_serve(name, one, known[name]))
        for name, one in found.items()
    }


def _serve(name: str, found: Outcome, known: Outcome) -> int:
    """The status that is known, or that of a forced call of a tool.

    A model without training may be cut off in such a call, and vLLM's front, which parses it,
    answers that with 500. Here it is the same either way.
    """
    is_forced = re.search(r"/v1/(messages|responses) tools: (named|required)", name)
    return found.serve if is_forced and found.serve in (200, 500) else known.serve


async def outcomes(
    app_name: str, engine: str, catalog: Catalog, served: Served
) -> dict[str, Outcome]:
    """What the lines of this model come to; fails if our answer is none that is meant."""
    from worker.engine_client import EngineClient

    client = EngineClient(app_name)
    found = {}
    for one in served.of(engine):
        # One at a time on both sides, because vLLM's numbers depend on the rest of the batch.
        ((status, body),) = await answers(client, [written(one)])
        assert body.isascii(), one.id
        assert b"\n" not in body, one.id
        fails = failing_code(one, catalog.endpoints_by_name())
        run, ours = served.run_batch.get(one.id), (status, json.loads(body))
        found[one.id] = outcome(one, served.serve[one.id], run, ours, fails=fails)
    return found


async def test_a_deployed_engine_has_no_replica_until_it_has_work(tiny: str) -> None:
    from worker.engine_status import engine_failure, engine_state

    state = engine_state(tiny)

    assert state is not None
    assert state == (0, 0)
    assert engine_failure(tiny) is None


async def test_the_first_call_starts_the_engine_and_a_row_of_any_kind_has_a_result(
    tiny: str, served: Served
) -> None:
    from worker.engine_client import EngineClient
    from worker.engine_status import engine_state

    rows = [written(one) for one in served.of(WRITER)[:100]]
    odd = [b"{}", b"no json", line("/v1/load_lora_adapter", {}), line(*chat(stream=True)),
           line("/v1/chat/completions", [1])]  # fmt: skip

    results = await answers(EngineClient(tiny), [*rows, *odd])

    expected_odd = [400, 400, 404, 400, 400]
    assert [status for status, _ in results[len(rows) :]] == expected_odd
    assert all(
        set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
        for status, body in results
        if status >= 400
    )
    state = engine_state(tiny)
    assert state is not None
    assert state.running == 1
    [numbers] = await EngineClient(tiny).numbers()
    told = [rows for rows in numbers.batches.values() if rows.answered]
    assert told
    assert all(rows.answer_tokens > 0 == rows.inside for rows in told)


async def test_the_replica_tells_what_its_start_was_made_of(tiny: str, ray: Any) -> None:
    from worker.engine_client import EngineClient

    [numbers] = await EngineClient(tiny).numbers()
    core = engine_core(tiny)
    replica = replica_of(core)
    assert core is not None
    assert replica is not None
    assert numbers.start is not None
    names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
    # What Serve's REST API calls it, by which the dispatcher finds it again.
    assert any(name.endswith(f"#{numbers.replica}") for name in names)

    stages = numbers.start.stages
    before, core_has = ["process", "imports", "configuration"], ["core", "weights", "profile"]
    assert list(stages) == [*before, *core_has, "server", "fronts"]
    assert min(stages.values()) >= 0
    before_core = sum(stages[stage] for stage in before)
    in_core = sum(stages[stage] for stage in core_has)
    # The core's process begins in the stage `core`, as the system has it.
    assert 0 < core.create_time() - replica.create_time() - before_core < in_core
    assert numbers.start.first_row_seconds is not None
    assert 0 < numbers.start.first_row_seconds < 60


async def test_where_usage_statistics_are_off_no_process_collects_them(tiny: str, ray: Any) -> None:
    names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]

    assert any(tiny in name for name in names)
    assert not any("telemetry" in name.lower() for name in names)


async def test_chat_answers_are_those_of_vllm_serve(
    tiny: str, served: Served, catalog: Catalog
) -> None:
    await assert_same_outcomes(tiny, WRITER, catalog, served)

    plain, adapted = (served.serve[name][1]["choices"] for name in (_PLAIN, _ADAPTED))
    assert plain != adapted


async def test_the_request_id_of_a_line_is_that_of_its_answer(tiny: str) -> None:
    from worker.engine_client import EngineClient

    (chat_result, responses_result) = await answers(
        EngineClient(tiny),
        [
            line(*chat(), request_id="batch-7-row-1"),
            line("/v1/responses", {**_ANY, "model": WRITER}, request_id="batch-7-row-2"),
        ],
    )

    assert json.loads(chat_result[1])["id"] == "chatcmpl-batch-7-row-1"
    assert responses_result[0] == 200


async def test_deploying_the_same_again_changes_nothing(tiny: str, catalog: Catalog) -> None:
    from worker.engine_deployment import ensure_engine

    before = engine_core(tiny)
    again = await asyncio.to_thread(ensure_engine, catalog, Lane("tiny-chat", "cpu"))

    assert again == tiny
    assert before is not None
    assert engine_core(tiny) == before


async def test_an_engine_outlives_serve_s_controller(tiny: str, ray: Any) -> None:
    from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

    from worker.engine_client import EngineClient
    from worker.engine_status import EngineState, engine_state

    controller = ray.get_actor(SERVE_CONTROLLER_NAME, SERVE_NAMESPACE)

    async def pid() -> int:
        return int(await controller.get_pid.remote())

    async def is_another() -> bool:
        try:
            return await pid() != killed
        except ray.exceptions.RayActorError:
            return False

    await answers(EngineClient(tiny), [line(*chat())])
    before, killed = engine_core(tiny), await pid()
    ray.kill(controller, no_restart=False)
    await eventually(is_another, timeout=60)
    # It looks at all replicas before it says that they run.
    await eventually(lambda: engine_state(tiny) == EngineState(1, 0), timeout=60)
    results = await answers(EngineClient(tiny), [line(*chat())])

    assert [status for status, _ in results] == [200]
    assert before is not None
    assert engine_core(tiny) == before


@pytest.mark.parametrize(
    "request_line",
    [
        line(*chat(max_tokens=900, ignore_eos=True)),
        line("/v1/responses", {"model": "tiny-chat", "input": "hi", "max_output_tokens": 900,
                               "ignore_eos": True}),
    ],
    ids=["by handler", "by app"],
)  # fmt: skip
async def test_cancelling_a_call_takes_its_rows_out_of_the_engine(
    tiny: str, request_line: bytes
) -> None:
    from ray import serve

    from worker.engine_client import EngineClient
    from worker.engine_status import DEPLOYMENT

    handle = serve.get_deployment_handle(DEPLOYMENT, tiny)

    async def unfinished() -> int:
        return int(await handle.unfinished.remote())

    async def are_in() -> bool:
        return await unfinished() >= 16

    async def are_out() -> bool:
        return await unfinished() == 0

    call = asyncio.create_task(answers(EngineClient(tiny), [request_line] * 20))
    await eventually(are_in)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    # Sooner than 900 tokens can be written.
    await eventually(are_out, timeout=5)


async def test_rows_of_a_front_that_dies_are_given_back_and_another_one_starts(tiny: str) -> None:
    from ray import serve

    from worker.engine_client import EngineClient
    from worker.engine_errors import EngineGoneError
    from worker.engine_status import DEPLOYMENT

    client = EngineClient(tiny)
    handle = serve.get_deployment_handle(DEPLOYMENT, tiny)
    rows = [line(*chat(max_tokens=900, ignore_eos=True))] * 20
    call = asyncio.create_task(answers(client, rows))

    async def are_in() -> bool:
        return int(await handle.unfinished.remote()) >= 16

    async def are_out() -> bool:
        return int(await handle.unfinished.remote()) == 0

    await eventually(are_in)
    # The first call starts the engine.
    core, before = engine_core(tiny), fronts(tiny)
    assert not [name for one in before for name in one.environ() if name.startswith("RAY_")]
    killed = before.pop()
    killed.kill()
    with pytest.raises(EngineGoneError) as raised:
        await asyncio.wait_for(call, timeout=60)

    # The rows of the other one cannot have been the reason.
    assert raised.value.positions is not None
    assert 0 < len(raised.value.positions) < len(rows)
    await eventually(are_out, timeout=5)
    await eventually(lambda: len(fronts(tiny)) == 2, timeout=60)
    assert killed not in fronts(tiny)
    assert before < fronts(tiny)
    results = await answers(client, [line(*chat())] * 4)
    assert [status for status, _ in results] == [200] * 4
    assert engine_core(tiny) == core


async def test_an_engine_that_dies_says_so_and_heals(tiny: str, ghost: "Future[str]") -> None:
    before = engine_core(tiny)
    assert not ghost.cancelled()  # fails meanwhile, and must not disturb this engine

    killed = await kill_core(tiny, line(*chat(max_tokens=900, ignore_eos=True)))
    await answer_next(tiny, line(*chat()))

    assert killed == before
    assert engine_core(tiny) not in {None, killed}


async def test_the_core_of_a_replica_that_is_killed_ends_with_it(tiny: str) -> None:
    from worker.engine_client import EngineClient
    from worker.engine_errors import EngineGoneError, EngineUnavailableError

    core = engine_core(tiny)
    assert core is not None
    replica = replica_of(core)
    assert replica is not None
    replica.kill()

    # It would keep its memory, which the next one needs.
    await eventually(lambda: not core.is_running(), timeout=60)
    results: list[tuple[int, bytes]] = []
    while not results:
        with suppress(EngineGoneError, EngineUnavailableError):
            results = await asyncio.wait_for(answers(EngineClient(tiny), [line(*chat())]), 180)
        await asyncio.sleep(0.2)
    assert results[0][0] == 200


async def test_an_idle_engine_gives_its_machine_back(tiny: str) -> None:
    from worker.engine_status import engine_state

    def is_asleep() -> bool:
        state = engine_state(tiny)
        return state == (0, 0)

    await eventually(is_asleep, timeout=IDLE_SECONDS + 60)
    await eventually(lambda: engine_core(tiny) is None, timeout=30)


async def test_a_changed_engine_replaces_the_one_before(tiny: str, catalog: Catalog) -> None:
    from worker.engine_deployment import ensure_engine
    from worker.engine_status import is_deployed

    entry = catalog.models["tiny-chat"].model_copy(update={"idle_seconds": 77.0})
    changed = catalog.model_copy(update={"models": {**catalog.models, "tiny-chat": entry}})

    name = await asyncio.to_thread(ensure_engine, changed, Lane("tiny-chat", "cpu"))

    assert name != tiny
    assert is_deployed(name)
    await eventually(lambda: not is_deployed(tiny), timeout=30)


async def test_an_engine_that_cannot_start_gives_its_reason_and_does_not_spin(
    ghost: "Future[str]",
) -> None:
    from worker.engine_status import engine_failure, engine_state

    name = await asyncio.wrap_future(ghost)

    assert engine_failure(name) == (
        "The model's folder /nowhere/ghost does not exist on this machine."
    )
    for _ in range(8):
        state = engine_state(name)
        assert state is not None
        assert state == (0, 0)
        await asyncio.sleep(0.5)


async def test_embeddings_are_those_of_vllm_serve(
    mini: "Future[str]", served: Served, catalog: Catalog
) -> None:
    await assert_same_outcomes(await asyncio.wrap_future(mini), EMBEDDER, catalog, served)


async def test_a_plain_embedding_is_answered_as_vllms_own_way_answers_it(
    mini: "Future[str]",
) -> None:
    from worker.engine_client import EngineClient

    client = EngineClient(await asyncio.wrap_future(mini))
    randoms = random.Random("plain")
    inputs: list[Any] = [odd_text(randoms) or "0" for _ in range(200)]
    inputs += ["word " * 300, [101, 7592, 102], [1] * 300, [-1], [10**9]]
    bodies = [{"model": EMBEDDER, "input": one} for one in inputs]
    bodies.append({**bodies[0], "encoding_format": "base64", "user": "somebody"})

    plain = await answers(client, [line("/v1/embeddings", body) for body in bodies])
    # A list of one prompt is left to vLLM.
    listed = [{**body, "input": [body["input"]]} for body in bodies]
    own = await answers(client, [line("/v1/embeddings", body) for body in listed])

    assert {status for status, _ in plain} == {200, 400}
    for body, one, other in zip(bodies, plain, own, strict=True):
        (answer, vector), (expected, own_vector) = _embedding(one), _embedding(other)
        assert answer == expected, body
        assert vector == pytest.approx(own_vector, abs=1e-4), body


async def test_a_small_batch_of_vectors_waits_for_no_front(mini: "Future[str]") -> None:
    from worker.engine_client import EngineClient

    app = await asyncio.wrap_future(mini)
    client, processes = EngineClient(app), fronts(app)
    lines = [
        line("/v1/embeddings", {"model": EMBEDDER, "input": text})
        for text in ("a train", "a boat", "")
    ]
    lines.append(line("/v1/embeddings", {**_ANY, "model": EMBEDDER, "dimensions": -1}))
    long = line("/v1/embeddings", {"model": EMBEDDER, "input": "word " * 2000})
    expected = [_embedding(one) for one in await answers(client, lines)]

    assert len(processes) == 2
    for process in processes:
        process.suspend()
    try:
        async with asyncio.timeout(30):
            quick = await answers(client, lines, batch_rows=len(lines))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await answers(client, [long], batch_rows=1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await answers(client, lines)
    finally:
        for process in processes:
            process.resume()

    for (answer, vector), (answer_of_front, vector_of_front) in zip(
        map(_embedding, quick), expected, strict=True
    ):
        assert answer == answer_of_front
        assert vector == pytest.approx(vector_of_front, abs=1e-4)


async def test_a_replica_that_expects_a_small_batch_goes_on_if_none_comes(
    mini: "Future[str]",
) -> None:
    from worker.engine_client import EngineClient

    client = EngineClient(await asyncio.wrap_future(mini))
    lines = [line("/v1/embeddings", {"model": EMBEDDER, "input": f"{n}"}) for n in range(200)]
    others = asyncio.create_task(answers(client, lines))
    with structlog.testing.capture_logs() as logs:
        while not others.done():
            await client.expect_small()
            await asyncio.sleep(0.02)

    assert logs == []
    assert {status for status, _ in await others} == {200}
    # What `expect_small` would not tell.
    told = client._connect().broadcast("expect_small")  # noqa: SLF001  # as the client asks
    assert await told.results_async(timeout_s=60) == [None]


def _embedding(answer: tuple[int, bytes]) -> tuple[Any, list[float]]:
    """All of the answer but what differs between any two, and its vector."""
    status, found = answer[0], json.loads(answer[1])
    if status != HTTPStatus.OK:
        return (status, found), []
    assert found.pop("id").startswith("embd-")
    assert found.pop("created") > 0
    vector = found["data"][0].pop("embedding")
    if isinstance(vector, str):
        vector = np.frombuffer(base64.b64decode(vector), np.float32).tolist()
    return (status, found), vector


async def test_scores_rankings_and_classes_are_those_of_vllm_serve(
    judge: "Future[str]", served: Served, catalog: Catalog
) -> None:
    await assert_same_outcomes(await asyncio.wrap_future(judge), JUDGE, catalog, served)


@pytest.mark.on_demand
@pytest.mark.timeout(3600)
async def test_every_line_comes_to_what_the_page_says(
    tiny: str, mini: "Future[str]", judge: "Future[str]", served: Served, catalog: Catalog
) -> None:
    from worker.engine_deployment import ensure_engine

    found: dict[str, Outcome] = {}
    names = {
        EMBEDDER: await asyncio.wrap_future(mini),
        JUDGE: await asyncio.wrap_future(judge),
        WRITER: tiny,
        SEER: await asyncio.to_thread(ensure_engine, catalog, Lane(SEER, "cpu")),
    }
    for engine, name in names.items():
        found |= await outcomes(name, engine, catalog, served)

    _FOUND.parent.mkdir(exist_ok=True)
    _FOUND.write_text(outcomes_text(found))
    assert found == read_outcomes(), f"copy {_FOUND.name} to {OUTCOMES} and run `make docs`"


async def test_moderations_are_the_scores_of_a_classifier_in_openais_form(
    judge: "Future[str]",
) -> None:
    from openai.types import ModerationCreateResponse

    from worker.engine_client import EngineClient

    client = EngineClient(await asyncio.wrap_future(judge))
    texts = ["a train", "a password"]
    classes = {"model": "tiny-judge", "input": texts}
    rows = [
        line("/classify", classes),
        line("/v1/moderations", classes),
        line("/v1/moderations", {**classes, "input": [{"type": "text", "text": texts[0]}]}),
        line("/v1/moderations", {**classes, "input": [{"type": "image_url"}]}),
        line("/v1/moderations", {**classes, "model": "nobody"}),
    ]

    results = await answers(client, rows)

    assert [status for status, _ in results] == [200, 200, 200, 400, 404]
    scores = [one["probs"][0] for one in json.loads(results[0][1])["data"]]
    found = json.loads(results[1][1])
    # OpenAI's own type has a field for each of OpenAI's categories.
    assert {*ModerationCreateResponse.model_fields} <= {*found}
    assert [one["category_scores"]["relevance"] for one in found["results"]] == pytest.approx(
        scores
    )
    assert [one["flagged"] for one in found["results"]] == [score >= 0.5 for score in scores]
    assert found["usage"]["prompt_tokens"] > 0
    [together] = json.loads(results[2][1])["results"]
    assert together["category_scores"]["relevance"] == pytest.approx(scores[0])
    assert json.loads(results[3][1])["error"]["param"].startswith("input.0")
