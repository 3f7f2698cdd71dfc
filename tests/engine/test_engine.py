"""Engines on a local Ray: they answer as `vllm serve` does, and heal when they die.

The tests share engines and run in their order, because each start costs about half a minute.
"""

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil
import pytest

from benchmarks.vllm_serve import serving
from cli.models.minilm import minilm_path
from cli.models.tiny import make_tiny_chat_model, make_tiny_classifier
from shared.catalog import Catalog, Lane
from tests.answers import answers
from tests.engine.conftest import QUIET, a_ray
from tests.eventually import eventually

pytest.importorskip("vllm", reason="needs the worker's dependencies")

pytestmark = [
    pytest.mark.timeout(600),
    # Ray and vLLM warn about themselves.
    pytest.mark.filterwarnings("ignore"),
]

IDLE_SECONDS = 10
#: Status and body by the name of the case.
Answers = dict[str, tuple[int, Any]]


class Served(NamedTuple):
    """The answers of `vllm serve`."""

    chats: Answers
    embeddings: Answers
    rankings: Answers


HI = [{"role": "user", "content": "Tell me about trains, please."}]
UNIT = {
    "type": "object",
    "properties": {"unit": {"enum": ["celsius", "kelvin"]}},
    "required": ["unit"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": UNIT}}
GOOD_OR_BAD = {
    "type": "object",
    "properties": {"mood": {"enum": ["good", "bad"]}},
    "required": ["mood"],
    "additionalProperties": False,
}
MOOD = {"type": "json_schema", "json_schema": {"name": "mood", "schema": GOOD_OR_BAD}}


def chat(**fields: Any) -> tuple[str, dict[str, Any]]:
    body = {"model": "tiny-chat", "messages": HI, "max_tokens": 12, "temperature": 0, **fields}
    return "/v1/chat/completions", {k: v for k, v in body.items() if v is not ...}


def message(**fields: Any) -> tuple[str, dict[str, Any]]:
    body = {"model": "tiny-chat", "messages": HI, "max_tokens": 12, "temperature": 0, **fields}
    return "/v1/messages", {k: v for k, v in body.items() if v is not ...}


def completion(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {"model": "tiny-chat", "max_tokens": 12, "temperature": 0, **fields}


def embedding(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/embeddings", {"model": "org/mini", **fields}


CHAT_CASES = {
    "plain": chat(),
    "system": chat(messages=[{"role": "system", "content": "Be brief."}, *HI]),
    "unicode": chat(messages=[{"role": "user", "content": "\u2028é\u0085😀"}]),
    "two choices": chat(n=2, temperature=1, top_k=1),
    "logprobs": chat(logprobs=True, top_logprobs=3),
    "stop": chat(stop=["e"], max_tokens=40),
    "json schema": chat(response_format=MOOD, max_tokens=40),
    "json schema of no kind": chat(
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"type": "objekt"}},
        }
    ),
    "tools, auto": chat(tools=[WEATHER], tool_choice="auto"),
    "tools, required": chat(tools=[WEATHER], tool_choice="required", max_tokens=60),
    "tools, named": chat(
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        max_tokens=60,
    ),
    "adapter": chat(model="tiny-lora"),
    "too long": chat(messages=[{"role": "user", "content": "train " * 2000}]),
    "max_tokens too big": chat(max_tokens=100_000),
    "wrong type": chat(temperature="warm"),
    "out of range": chat(temperature=-3),
    "greedy n": chat(n=2),
    "missing field": chat(messages=...),
    "no messages": chat(messages=[]),
    "odd role": chat(messages=[{"role": 7, "content": {}}]),
    "unknown model": chat(model="no-such-model"),
    "completion": completion(prompt="The train"),
    "completion, echo": completion(prompt="é \u2028 ü", echo=True, logprobs=1),
    "completion, token ids": completion(prompt=[5, 6, 7]),
    "completion, many": completion(prompt=["one", "two"]),
    "completion, no prompt": completion(),
    "responses": ("/v1/responses", {"model": "tiny-chat", "input": "hi", "temperature": 0,
                                    "max_output_tokens": 12}),
    "message": message(),
    "message with a system": message(system="Be brief.", stop_sequences=["e"], max_tokens=40),
    "message with tools": message(
        tools=[{"name": "weather", "input_schema": UNIT}],
        tool_choice={"type": "tool", "name": "weather"},
        max_tokens=60,
    ),
    "message with a form": message(
        output_config={"format": {"type": "json_schema", "schema": GOOD_OR_BAD}},
        max_tokens=40,
    ),
    "message without a limit": message(max_tokens=...),
    "message that is too long": message(messages=[{"role": "user", "content": "train " * 2000}]),
    "no stream": chat(stream="no"),
    "perhaps a stream": chat(stream="perhaps"),
    "embeddings of a chat model": embedding(model="tiny-chat", input="x"),
}  # fmt: skip


def score(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "/score", {"model": "tiny-judge", **fields}


def rerank(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "/rerank", {"model": "tiny-judge", "query": "trains", **fields}


_FOUR = ["a train leaves", "reset my password", "", "é\u2028 trains"]
RANKING_CASES = {
    "one pair": score(queries="trains", documents="a train leaves"),
    "one with many": score(text_1="trains", text_2=_FOUR[:2]),
    "many with many": score(data_1=["a", "b"], data_2=["c", "d"]),
    "many with fewer": score(data_1=["a", "b", "c"], data_2=["d", "e"]),
    "items": score(queries="trains", items=["a train leaves"]),
    "v1": ("/v1/score", score(queries="a", documents=["b"])[1]),
    "without activation": score(queries="a", documents=["b"], use_activation=False),
    "no documents": score(queries="a", documents=[]),
    "one side": score(queries="a"),
    "a long side": score(queries="a", documents="train " * 3000),
    "a long side, cut": score(queries="a", documents="train " * 3000, truncate_prompt_tokens=64),
    "with a picture": score(queries="a", documents={"content": [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}),
    "in order": rerank(documents=_FOUR),
    "the best two": rerank(documents=_FOUR, top_n=2),
    "more than there are": rerank(documents=_FOUR, top_n=9),
    "one document": rerank(documents="a train leaves"),
    "v1 rerank": ("/v1/rerank", rerank(documents=_FOUR)[1]),
    "v2 rerank": ("/v2/rerank", rerank(documents=_FOUR)[1]),
    "no query": ("/rerank", {"model": "tiny-judge", "documents": _FOUR}),
    "fewer than none": rerank(documents=_FOUR, top_n=-1),
    "classes": ("/classify", {"model": "tiny-judge", "input": ["a train", "a password"]}),
    "class of tokens": ("/classify", {"model": "tiny-judge", "input": [5, 6, 7]}),
    "class of a chat": ("/classify", {"model": "tiny-judge", "messages": HI}),
    "class of nothing": ("/classify", {"model": "tiny-judge"}),
    "pooled": ("/pooling", {"model": "tiny-judge", "input": "a train"}),
    "pooled in base64": ("/pooling", {"model": "tiny-judge", "input": ["a", "b"],
                                      "encoding_format": "base64"}),
    "pooled by name": ("/pooling", {"model": "tiny-judge", "input": "a", "task": "classify"}),
    "embeddings of a judge": embedding(model="tiny-judge", input="x"),
    "an unknown judge": score(model="nobody", queries="a", documents="b"),
}  # fmt: skip

EMBEDDING_CASES = {
    "one": embedding(input="reset my password"),
    "many": embedding(input=["reset my password", "forgot my login", "a train\u2028é"]),
    "base64": embedding(input="reset my password", encoding_format="base64"),
    "token ids": embedding(input=[101, 2653, 102]),
    "too long": embedding(input="train " * 2000),
    "wrong type": embedding(input={"a": 1}),
    "no input": embedding(),
    "unknown model": embedding(model="no-such-model", input="x"),
    "a conversation": embedding(messages=HI),
    "a score": ("/score", {"model": "org/mini", "queries": "login", "documents": ["a", "b"]}),
    "a ranking": (
        "/rerank",
        {"model": "org/mini", "query": "login", "documents": ["password", "train"]},
    ),
    "pooled": ("/pooling", {"model": "org/mini", "input": "login"}),
    "classes": ("/classify", {"model": "org/mini", "input": "login"}),
    "chat on an embedding model": chat(model="org/mini"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_tiny_chat_model(folder / "tiny")
    make_tiny_classifier(folder / "judge")
    _make_adapter(folder / "adapter")
    return folder


def _make_adapter(folder: Path) -> None:
    """A LoRA adapter of random weights for the tiny model."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    random = torch.Generator().manual_seed(3)
    name = "base_model.model.model.layers.0.self_attn.o_proj.lora_{}.weight"
    save_file(
        {
            name.format("A"): torch.randn(8, 128, generator=random),
            name.format("B"): torch.randn(128, 8, generator=random),
        },
        folder / "adapter_model.safetensors",
    )
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["o_proj"],
              "task_type": "CAUSAL_LM", "bias": "none"}  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def catalog(folder: Path) -> Catalog:
    return Catalog.model_validate(
        {
            "pools": {"cpu": {"resources": {"CPU": 1}}},
            "models": {
                "tiny-chat": {
                    "source": str(folder / "tiny"),
                    "pools": ["cpu"],
                    "idle_seconds": IDLE_SECONDS,
                    "fronts": 2,
                    "lora": {"tiny-lora": str(folder / "adapter")},
                    "engine": {
                        "max_model_len": 1024,
                        "max_num_seqs": 32,
                        "enforce_eager": True,
                        "dtype": "float32",
                        "enable_prefix_caching": False,
                        "enable_auto_tool_choice": True,
                        "tool_call_parser": "hermes",
                    },
                    "env": {"VLLM_CPU_KVCACHE_SPACE": 1, "TORCH_COMPILE_DISABLE": 1},
                },
                "org/mini": {
                    "source": str(minilm_path()),
                    "pools": ["cpu"],
                    "fronts": 2,
                    "engine": {"runner": "pooling", "max_num_seqs": 32, "enforce_eager": True},
                    "env": {"VLLM_CPU_KVCACHE_SPACE": 1},
                },
                "tiny-judge": {
                    "source": str(folder / "judge"),
                    "pools": ["cpu"],
                    "tasks": ["rerank"],
                    "engine": {"max_model_len": 1024, "max_num_seqs": 32, "enforce_eager": True,
                               "dtype": "float32", "enable_prefix_caching": False},
                    "env": {"VLLM_CPU_KVCACHE_SPACE": 1, "TORCH_COMPILE_DISABLE": 1},
                },
                "ghost": {"source": "/nowhere/ghost", "pools": ["cpu"]},
            },
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def served(folder: Path) -> Served:
    """What `vllm serve` answers for both models. It is gone before the engines under test start."""
    # Two cores start two of them in the time of one.
    with ThreadPoolExecutor(2) as threads:
        chats = threads.submit(_chat_answers, folder)
        embeddings = threads.submit(_embedding_answers)
        rankings = threads.submit(_ranking_answers, folder)
        return Served(chats.result(), embeddings.result(), rankings.result())


def _chat_answers(folder: Path) -> Answers:
    # Neither half precision nor the cache may decide between two words.
    flags = ["--max-model-len=1024", "--dtype=float32", "--no-enable-prefix-caching",
             "--enable-auto-tool-choice", "--tool-call-parser=hermes",
             "--enable-lora", f"--lora-modules=tiny-lora={folder / 'adapter'}"]  # fmt: skip
    with _vllm_serve(folder / "tiny", "tiny-chat", *flags) as url:
        return {name: _post(url, *case) for name, case in CHAT_CASES.items()}


def _embedding_answers() -> Answers:
    with _vllm_serve(minilm_path(), "org/mini", "--runner=pooling") as url:
        return {name: _post(url, *case) for name, case in EMBEDDING_CASES.items()}


def _ranking_answers(folder: Path) -> Answers:
    flags = ["--max-model-len=1024", "--dtype=float32", "--no-enable-prefix-caching"]
    with _vllm_serve(folder / "judge", "tiny-judge", *flags) as url:
        return {name: _post(url, *case) for name, case in RANKING_CASES.items()}


def _vllm_serve(source: Path, name: str, *flags: str) -> AbstractContextManager[str]:
    # The seats and the spare ones are part of its `system_fingerprint`, and so is the policy.
    ours = ["--enforce-eager", "--distributed-executor-backend=uni", "--max-num-seqs=40",
            "--scheduling-policy=priority", "--max-num-batched-tokens=8192",
            "--enable-prompt-tokens-details"]  # fmt: skip
    return serving(source, name, [*ours, *flags], {**QUIET, **_CPU})


def _post(url: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    # Escaped, because a body may hold what UTF-8 cannot.
    headers = {"content-type": "application/json"}
    content = json.dumps(body).encode()
    response = httpx.post(url + path, content=content, headers=headers, timeout=60)
    return response.status_code, response.json()


#: As our engines on CPUs. The last digit of a number depends on how many threads there are.
_CPU = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
    "TORCH_COMPILE_DISABLE": "1",
}


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
        asyncio.run(answers(EngineClient(name), [line(*EMBEDDING_CASES["one"])]))
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
        asyncio.run(answers(EngineClient(name), [line(*RANKING_CASES["one pair"])]))
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


def anonymous(value: Any) -> Any:
    """The answer without ids and times, which differ each time."""
    if isinstance(value, dict):
        dropped = {"id", "created", "created_at", "completed_at", "request_id"}
        return {key: anonymous(inner) for key, inner in value.items() if key not in dropped}
    return [anonymous(inner) for inner in value] if isinstance(value, list) else value


def engine_core(app_name: str) -> psutil.Process | None:
    """The process that holds the model of this application's only replica."""
    # Ray calls it `ray::ServeReplica:NAME:engine`, or during a call by the last part of NAME.
    replica = f"{app_name.rpartition('.')[2]}:engine"
    for process in psutil.process_iter(["cmdline"]):
        if "EngineCore" in " ".join(process.info["cmdline"] or []):
            parent = process.parent()
            if parent and replica in " ".join(parent.cmdline()):
                return process
    return None


def fronts(app_name: str) -> set[psutil.Process]:
    """The front processes of this application's only replica."""
    core = engine_core(app_name)
    replica = core and core.parent()
    children = replica.children(recursive=True) if replica else []
    return {
        one
        for one in children
        # What has forked them looks like them.
        if "worker.front_server" in one.cmdline() and one.ppid() != (replica and replica.pid)
    }


def same(answer: tuple[int, Any]) -> tuple[int, Any]:
    """Without ids and times, and with what the web framework refused in OpenAI's envelope."""
    status, body = answer
    if status == 404 and "detail" in body:
        error = {"message": body["detail"], "type": "invalid_request_error"}
        return status, {"error": {**error, "param": None, "code": None}}
    if body.get("type") == "error":
        # Every error of a batch has OpenAI's form, whatever the endpoint.
        return status, {"error": {"param": None, "code": None, **body["error"]}}
    return status, anonymous(body)


async def assert_same_answers(
    app_name: str,
    cases: dict[str, tuple[str, dict[str, Any]]],
    expected: Answers,
) -> None:
    from worker.engine_client import EngineClient

    client = EngineClient(app_name)
    for name, case in cases.items():
        # One at a time on both sides, because vLLM's numbers depend on the rest of the batch.
        ((status, body),) = await answers(client, [line(*case)])
        assert body.isascii(), name
        assert b"\n" not in body, name
        assert same((status, json.loads(body))) == same(expected[name]), name


async def test_a_deployed_engine_has_no_replica_until_it_has_work(tiny: str) -> None:
    from worker.engine_status import engine_failure, engine_state

    state = engine_state(tiny)

    assert state is not None
    assert state == (0, 0)
    assert engine_failure(tiny) is None


async def test_the_first_call_starts_the_engine_and_a_row_of_any_kind_has_a_result(
    tiny: str,
) -> None:
    from worker.engine_client import EngineClient
    from worker.engine_status import engine_state

    half_a_pair = chat(messages=[{"role": "user", "content": "cut \ud83d"}])
    rows = [line(*case) for case in (*CHAT_CASES.values(), half_a_pair)]
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


async def test_where_usage_statistics_are_off_no_process_collects_them(tiny: str, ray: Any) -> None:
    names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]

    assert any(tiny in name for name in names)
    assert not any("telemetry" in name.lower() for name in names)


async def test_chat_answers_are_those_of_vllm_serve(tiny: str, served: Served) -> None:
    await assert_same_answers(tiny, CHAT_CASES, served.chats)

    statuses = {name: status for name, (status, _) in served.chats.items()}
    assert statuses["plain"] == 200
    assert statuses["adapter"] == 200
    assert served.chats["adapter"][1]["choices"] != served.chats["plain"][1]["choices"]
    assert statuses["too long"] == 400
    assert statuses["unknown model"] == 404


async def test_the_request_id_of_a_line_is_that_of_its_answer(tiny: str) -> None:
    from worker.engine_client import EngineClient

    (chat_result, responses_result) = await answers(
        EngineClient(tiny),
        [
            line(*chat(), request_id="batch-7-row-1"),
            line(*CHAT_CASES["responses"], request_id="batch-7-row-2"),
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
    core, before = engine_core(tiny), fronts(tiny)
    rows = [line(*chat(max_tokens=900, ignore_eos=True))] * 20
    call = asyncio.create_task(answers(client, rows))

    async def are_in() -> bool:
        return int(await handle.unfinished.remote()) >= 16

    async def are_out() -> bool:
        return int(await handle.unfinished.remote()) == 0

    await eventually(are_in)
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
    from ray import serve

    from worker.engine_client import EngineClient
    from worker.engine_errors import EngineGoneError, EngineUnavailableError
    from worker.engine_status import DEPLOYMENT

    client = EngineClient(tiny)
    handle = serve.get_deployment_handle(DEPLOYMENT, tiny)
    call = asyncio.create_task(answers(client, [line(*chat(max_tokens=900, ignore_eos=True))] * 20))

    async def are_in() -> bool:
        return int(await handle.unfinished.remote()) >= 16

    await eventually(are_in)
    core = engine_core(tiny)
    assert core is not None
    core.send_signal(signal.SIGKILL)
    assert not ghost.cancelled()  # fails meanwhile, and must not disturb this engine
    with pytest.raises(EngineGoneError):
        await asyncio.wait_for(call, timeout=60)

    # Lines that come meanwhile wait or go back unseen; they never count as the killer.
    results: list[tuple[int, bytes]] = []
    while not results:
        try:
            results = await asyncio.wait_for(answers(client, [line(*chat())]), timeout=180)
        except EngineUnavailableError:
            await asyncio.sleep(0.2)
    assert results[0][0] == 200
    assert engine_core(tiny) != core


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


async def test_embeddings_are_those_of_vllm_serve(mini: "Future[str]", served: Served) -> None:
    name = await asyncio.wrap_future(mini)

    await assert_same_answers(name, EMBEDDING_CASES, served.embeddings)

    vector = served.embeddings["one"][1]["data"][0]["embedding"]
    assert len(vector) == 384


async def test_scores_rankings_and_classes_are_those_of_vllm_serve(
    judge: "Future[str]", served: Served
) -> None:
    name = await asyncio.wrap_future(judge)

    await assert_same_answers(name, RANKING_CASES, served.rankings)

    statuses = {name: status for name, (status, _) in served.rankings.items()}
    fine = ("one with many", "in order", "classes", "class of a chat", "pooled", "items")
    assert [statuses[name] for name in fine] == [200] * len(fine)
    assert statuses["embeddings of a judge"] == 404


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
