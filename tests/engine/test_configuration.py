"""An engine's arguments and environment follow from its model and its pool. Starts no engine."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cli.models.tiny import make_tiny_chat_model, make_tiny_classifier
from shared.catalog import Model, Pool
from shared.errors import SetupError
from shared.starting import Starting

pytest.importorskip("vllm", reason="needs the worker's dependencies")

pytestmark = pytest.mark.filterwarnings("ignore")

CPU, GPU = Pool(resources={"CPU": 4}), Pool(resources={"GPU": 1})


@pytest.fixture(autouse=True)
def level(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of vLLM, which the check sets for its own process: engines of other tests say more."""
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")


@pytest.fixture(autouse=True)
def away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in this process asks the models' hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def model(**fields: Any) -> Model:
    return Model(name="m", source="org/m", pools=("any",), **fields)


def test_on_cpus_the_weights_live_in_the_core_with_the_pool_s_threads() -> None:
    from worker.engine_config import engine_arguments
    from worker.engine_environment import engine_environment

    assert engine_arguments(model(), CPU)["distributed_executor_backend"] == "uni"
    assert engine_environment(model(), CPU) == {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": "4",
    }
    assert engine_environment(model(env={"OMP_NUM_THREADS": "2"}), CPU)["OMP_NUM_THREADS"] == "2"


def test_less_than_a_core_is_one_thread() -> None:
    from worker.engine_environment import engine_environment

    half = Pool(resources={"CPU": 0.5})

    assert engine_environment(model(), half)["OMP_NUM_THREADS"] == "1"


def test_an_engine_on_a_part_of_a_gpu_asks_for_it_and_takes_its_part_of_the_memory() -> None:
    from worker.engine_config import engine_arguments
    from worker.engine_definition import serve_options
    from worker.engine_environment import engine_environment

    quarter = Pool(resources={"GPU": 0.25})
    own = {"gpu_memory_utilization": 0.1}

    assert engine_environment(model(), quarter) == {
        "VLLM_RAY_PER_WORKER_GPUS": "0.25",
        "VLLM_ENABLE_STARTUP_PLAN": "1",
    }
    assert serve_options(model(), quarter)["ray_actor_options"]["num_gpus"] == 0.25
    assert engine_arguments(model(), quarter)["gpu_memory_utilization"] == 0.23
    assert engine_arguments(model(engine=own), quarter)["gpu_memory_utilization"] == 0.1
    assert "gpu_memory_utilization" not in engine_arguments(model(), Pool(resources={"GPU": 1}))


def test_what_was_read_of_media_is_kept_only_where_all_tenants_share_it() -> None:
    from worker.engine_config import engine_arguments

    kept = model(engine={"mm_processor_cache_gb": 4})

    assert engine_arguments(model(), CPU)["mm_processor_cache_gb"] == 0
    assert engine_arguments(model(share_prefixes=("acme",)), CPU)["mm_processor_cache_gb"] == 0
    assert engine_arguments(kept, CPU)["mm_processor_cache_gb"] == 4
    assert "mm_processor_cache_gb" not in engine_arguments(model(share_prefixes=("*",)), CPU)


@pytest.mark.parametrize(
    "pool",
    [
        Pool(accelerator_type="H100"),
        Pool(accelerator_type="H100", resources={"CPU": 4}),
        Pool(resources={"GPU": 1, "CPU": 4}),
    ],
)
def test_on_a_card_the_replica_has_the_card_for_its_core(pool: Pool) -> None:
    from worker.engine_config import engine_arguments, llm_config
    from worker.engine_definition import serve_options

    asked = model(engine={"distributed_executor_backend": "ray"})

    assert engine_arguments(model(), pool)["distributed_executor_backend"] == "uni"
    assert engine_arguments(asked, pool)["distributed_executor_backend"] == "ray"
    # Ray refuses any other.
    assert "distributed_executor_backend" not in llm_config(model(), pool).engine_kwargs
    assert serve_options(model(), pool)["ray_actor_options"]["num_gpus"] == 1
    assert serve_options(asked, pool)["ray_actor_options"]["num_gpus"] == 0


@pytest.mark.parametrize(
    ("fields", "pool"),
    [
        ({}, Pool(resources={"neuron_cores": 2})),
        ({"engine": {"tensor_parallel_size": 2}}, CPU),
        ({"engine": {"tensor_parallel_size": 2}}, Pool(accelerator_type="H100")),
        ({"engine": {"pipeline_parallel_size": 2}}, CPU),
        ({"env": {"VLLM_CPU_OMP_THREADS_BIND": "0-3"}}, CPU),
    ],
)
def test_elsewhere_vllm_chooses(fields: dict[str, Any], pool: Pool) -> None:
    from worker.engine_config import engine_arguments
    from worker.engine_environment import engine_environment

    assert "distributed_executor_backend" not in engine_arguments(model(**fields), pool)
    plan = {} if pool.accelerator_type is None else {"VLLM_ENABLE_STARTUP_PLAN": "1"}
    assert engine_environment(model(**fields), pool) == {**plan, **fields.get("env", {})}


@pytest.mark.parametrize(
    ("fields", "pool"),
    [
        ({}, CPU),
        ({}, Pool(resources={"CPU": 0.5})),
        ({}, Pool(accelerator_type="H100")),
        ({"engine": {"tensor_parallel_size": 2}}, Pool(accelerator_type="H100")),
        ({"engine": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}}, GPU),
        ({"fronts": 3}, Pool(accelerator_type="H100", resources={"CPU": 4})),
        ({}, Pool(resources={"GPU": 0.25})),
        ({}, Pool(resources={"GPU": 1, "CPU": 4, "big": 1})),
        ({}, Pool(resources={"neuron_cores": 2})),
    ],
)
def test_resources_are_kept_as_ray_s_own_library_keeps_them(
    fields: dict[str, Any], pool: Pool
) -> None:
    from ray.llm._internal.serve.core.server import llm_server

    from worker.engine_config import llm_config
    from worker.engine_definition import serve_options

    ours = serve_options(model(**fields), pool)
    replica = {"CPU": ours["ray_actor_options"]["num_cpus"], "GPU": 0}
    engine = llm_config(model(**fields), pool).get_engine_config()
    # What asks for both starts Ray.
    assert engine is not None
    merge = llm_server._merge_replica_actor_and_child_actor_bundles  # noqa: SLF001  # see above
    rays = merge(engine.placement_bundles, replica)

    assert ours["placement_group_bundles"] == rays
    assert ours["placement_group_strategy"] == engine.placement_strategy


def test_who_deploys_an_engine_does_not_import_it() -> None:
    program = "import sys, worker.engine_deployment; print('vllm' in sys.modules)"

    said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)

    assert said.stdout == b"False\n"


def test_a_model_s_properties_are_read_without_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.model_executor.models.registry import ModelRegistry

    from worker.engine_start import register_model_classes

    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("vLLM started a process")

    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "empty"))
    monkeypatch.setattr(subprocess, "run", refuse)
    make_tiny_chat_model(tmp_path / "tiny")

    register_model_classes(str(tmp_path / "tiny"), {})

    properties = ModelRegistry.models["Qwen2ForCausalLM"].inspect_model_cls()
    assert properties.is_text_generation_model


def test_steps_are_limited_unless_the_operator_has_chosen_a_scheduler(tmp_path: Path) -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs

    from tests.engine.noted_steps import NOTED_SCHEDULER
    from worker.engine_start import adapt

    make_tiny_chat_model(tmp_path / "tiny")
    arguments = AsyncEngineArgs(model=str(tmp_path / "tiny"), max_model_len=64)
    config = arguments.create_engine_config()
    scheduler = config.scheduler_config

    adapt(config, fronts=1)
    expected = "AsyncStepScheduler" if scheduler.async_scheduling else "StepScheduler"
    assert scheduler.scheduler_cls == f"worker.step_scheduler.{expected}"

    scheduler.scheduler_cls = NOTED_SCHEDULER
    adapt(config, fronts=1)
    assert scheduler.scheduler_cls == NOTED_SCHEDULER


def test_sequences_of_vectors_go_together_into_a_core_with_our_scheduler(tmp_path: Path) -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs

    from worker.core_sequences import can_gather
    from worker.engine_start import adapt

    make_tiny_classifier(tmp_path / "judge")
    make_tiny_chat_model(tmp_path / "chat")
    judge = AsyncEngineArgs(model=str(tmp_path / "judge"), runner="pooling").create_engine_config()
    chat = AsyncEngineArgs(model=str(tmp_path / "chat"), max_model_len=64).create_engine_config()

    assert not can_gather(judge)
    for config in (judge, chat):
        adapt(config, fronts=1)
    assert can_gather(judge)
    assert not can_gather(chat)

    judge.parallel_config.data_parallel_size = 2
    assert not can_gather(judge)


def test_a_model_that_is_not_there_is_left_to_vllm(tmp_path: Path) -> None:
    from worker.engine_start import register_model_classes

    register_model_classes(str(tmp_path / "nowhere"), {})


def test_the_check_finds_a_reranker_that_the_catalog_takes_for_something_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from worker.check import check_catalog

    make_tiny_classifier(tmp_path / "judge")
    catalog = tmp_path / "catalog.yaml"
    start = "pools: {cpu: {resources: {CPU: 1}}}\nmodels:\n  judge:\n    source: ./judge\n"

    catalog.write_text(f"{start}    pools: [cpu]\n")
    assert check_catalog(catalog) == 0
    capsys.readouterr()

    catalog.write_text(f"{start}    endpoints: [/v1/embeddings]\n    pools: [cpu]\n")
    assert check_catalog(catalog) == 2
    said = capsys.readouterr().out
    assert f"{catalog}:5: models.judge.endpoints: this model does not answer /v1/embed" in said
    assert "/rerank" in said

    catalog.write_text(f"{start}    tasks: [embed]\n    pools: [cpu]\n")
    assert check_catalog(catalog) == 2
    assert f"{catalog}:5: models.judge.tasks" in capsys.readouterr().out


def test_the_check_tells_what_a_model_is_taken_for_whose_files_are_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cross-encoder named by its name at Hugging Face counts as embeddings until it is said."""
    from worker.check import check_catalog

    catalog = tmp_path / "catalog.yaml"
    start = "pools: {cpu: {resources: {CPU: 1}}}\nmodels:\n  org/judge:\n    pools: [cpu]\n"
    start += "    engine: {runner: pooling}\n"

    catalog.write_text(start)
    assert check_catalog(catalog) == 0
    _, told, last = capsys.readouterr().out.splitlines()
    assert told.startswith("models.org/judge: taken for embed, because the files that would tell ")
    assert ("Write `tasks`" in told, last) == (True, "ok")

    catalog.write_text(f"{start}    tasks: [rerank]\n")
    assert check_catalog(catalog) == 0
    assert "files" not in capsys.readouterr().out

    catalog.write_text(start.replace("    engine: {runner: pooling}\n", ""))
    assert check_catalog(catalog) == 0
    assert "models.org/judge: taken for generate, because" in capsys.readouterr().out


class _Hub(BaseHTTPRequestHandler):
    """A hub with the `config.json` of a reranker, and of a model that writes and hears."""

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        config = _CONFIGS.get(self.path)
        body = json.dumps(config or {}).encode()
        self.send_response(200 if config else 404)
        for name, value in {
            "content-length": str(len(body)),
            "etag": '"1"',
            "x-repo-commit": "1" * 40,
            **({} if config else {"x-error-code": "EntryNotFound"}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


_CONFIGS = {
    "/org/judge/resolve/main/config.json": {
        "architectures": ["XLMRobertaForSequenceClassification"],
        "id2label": {"0": "LABEL_0"},
    },
    "/org/ears/resolve/main/config.json": {"architectures": ["VoxtralForConditionalGeneration"]},
}


def test_the_check_asks_the_hub_what_a_model_does_and_tells_what_to_write(tmp_path: Path) -> None:
    catalog = tmp_path / "catalog.yaml"
    pools = "pools: {cpu: {resources: {CPU: 1}}}\nmodels:\n"
    catalog.write_text(f"{pools}  org/judge: {{pools: [cpu]}}\n  org/ears: {{pools: [cpu]}}\n")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        hub = f"http://127.0.0.1:{server.server_port}"
        environment = {**os.environ, "HF_ENDPOINT": hub, "HF_HOME": str(tmp_path)}
        environment.pop("HF_HUB_OFFLINE", None)
        found = subprocess.run(
            [sys.executable, "-m", "worker", "check", str(catalog)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        server.shutdown()

    said = found.stdout.splitlines()
    assert found.returncode == 2, found.stderr
    assert f"{catalog}:3: models.org/judge.endpoints: this model does not answer " in said[-1]
    assert said[-1].endswith("`tasks: [rerank]`")
    [more] = [line for line in said if line.startswith("models.org/ears: it does more")]
    assert "`tasks: [generate, transcription]`" in more


def test_the_check_refuses_a_model_that_hears_where_nothing_reads_sounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from worker import check

    (tmp_path / "ears").mkdir()
    config = {"architectures": ["VoxtralForConditionalGeneration"]}
    (tmp_path / "ears/config.json").write_text(json.dumps(config))
    catalog = tmp_path / "catalog.yaml"
    start = "pools: {cpu: {resources: {CPU: 1}}}\nmodels:\n  ears:\n    source: ./ears\n"
    monkeypatch.setattr(check, "_SOUND_LIBRARIES", ("no_such_library",))

    catalog.write_text(f"{start}    pools: [cpu]\n")
    assert check.check_catalog(catalog) == 2
    said = capsys.readouterr().out
    assert f"{catalog}:3: models.ears: it hears, and vLLM reads sounds with no_such_lib" in said

    catalog.write_text(f"{start}    endpoints: [/v1/chat/completions]\n    pools: [cpu]\n")
    assert check.check_catalog(catalog) == 0


def test_a_folder_that_cannot_be_looked_at_is_none(tmp_path: Path) -> None:
    from worker.model_folder import model_folder

    (tmp_path / "loop").symlink_to("loop")
    for source in (f"/{'long' * 100}", str(tmp_path / "loop" / "model")):
        assert model_folder(Model(name="m", source=source, pools=("any",))) is None


_LARGE = """pools: {h100: {accelerator_type: H100, machine: {GPU: 4, CPU: 64}, max_machines: 1}}
models:
  large:
    pools: [h100]
    engine: {tensor_parallel_size: 2, pipeline_parallel_size: 2"""


def test_the_check_tells_what_an_engine_takes_and_whether_the_machines_can_hold_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from worker.check import check_catalog

    catalog = tmp_path / "catalog.yaml"

    catalog.write_text(f"{_LARGE}}}\n")
    assert check_catalog(catalog) == 0
    told, _, last = capsys.readouterr().out.splitlines()
    assert told.startswith("large on h100: an engine has 4 GPUs, in the bundles 1 x {GPU: 1, ")
    assert (told.endswith("; 1 machine"), last) == (True, "ok")

    catalog.write_text(f"{_LARGE.replace('GPU: 4', 'GPU: 2')}}}\n")
    assert check_catalog(catalog) == 2
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"{catalog}:4: models.large: on pool `h100`: its engine has 4 GPUs and needs 2 machines, "
        "and the pool has 1"
    )


@pytest.mark.parametrize("value", ["two", ".inf", "0", "[2]"])
def test_a_number_of_gpus_that_is_none_is_reported_as_any_other_argument(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    from worker.check import check_catalog

    catalog = tmp_path / "catalog.yaml"
    text = _LARGE.replace("tensor_parallel_size: 2", f"tensor_parallel_size: {value}")
    catalog.write_text(f"{text}, max_num_seqs: many}}\n")

    assert check_catalog(catalog) == 2
    said = capsys.readouterr().out
    assert f"{catalog}:5: models.large.engine.tensor_parallel_size: " in said
    assert f"{catalog}:5: models.large.engine.max_num_seqs: " in said


def test_the_check_refuses_data_parallel_engines_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray would reserve four GPUs for what takes eight."""
    from worker.check import check_catalog

    catalog = tmp_path / "catalog.yaml"
    catalog.write_text(f"{_LARGE}, data_parallel_size: 2}}\n")

    assert check_catalog(catalog) == 2
    [said] = capsys.readouterr().out.splitlines()
    assert said.startswith(f"{catalog}:5: models.large.engine.data_parallel_size: data parallel ")
    assert "Use `max_replicas`" in said


def test_how_an_engine_starts_is_told_to_vllm_and_wins_over_no_other_field() -> None:
    from worker.engine_config import engine_arguments
    from worker.engine_environment import engine_environment, replica_environment
    from worker.engine_variables import FORKED_CORE_VARIABLE

    start = Starting(core="spawned", cache="/cache", load_format="dummy", optimization_level=0)
    own = model(start=start)

    assert engine_arguments(own, CPU).items() >= start.arguments.items()
    assert engine_environment(own, CPU)["VLLM_CACHE_ROOT"] == "/cache"
    assert FORKED_CORE_VARIABLE not in replica_environment(own, CPU)
    assert replica_environment(model(), CPU)[FORKED_CORE_VARIABLE] == "1"


def test_the_check_refuses_what_a_start_cannot_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from worker.check import check_catalog

    catalog = tmp_path / "catalog.yaml"
    start = "start: {core: forked, load_format: 7}"
    catalog.write_text(f"{_LARGE}}}\n".replace("    engine:", f"    {start}\n    engine:"))
    assert check_catalog(catalog) == 2
    said = capsys.readouterr().out
    # No string, which is found before vLLM is asked.
    assert f"{catalog}:5: models.large.start.load_format: " in said

    catalog.write_text(catalog.read_text().replace(", load_format: 7", ""))
    assert check_catalog(catalog) == 2
    assert (
        capsys.readouterr()
        .out.splitlines()[-1]
        .startswith(
            f"{catalog}:5: models.large.start.core: on pool `h100` the model runs in workers"
        )
    )


def test_an_engine_that_lacks_a_promised_endpoint_does_not_start() -> None:
    from worker.engine_endpoints import endpoints_environment, require_endpoints

    environment = endpoints_environment(model(tasks=("embed",)))

    require_endpoints(environment, ["/v1/embeddings", "/pooling", *_COMPARING])
    with pytest.raises(SetupError, match="does not answer /v1/embeddings; it answers /classify"):
        require_endpoints(environment, ["/classify", "/pooling", *_COMPARING])


_COMPARING = ("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank")
