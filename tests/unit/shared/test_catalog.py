"""The catalog: the meaning of a good file, and the error of each bad one."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from shared.catalog import DEFAULT_SEATS, Catalog, Lane, Model
from shared.catalog_file import CatalogError, load_catalog
from shared.errors import NotFoundError
from shared.openai.endpoints import GENERATING, Task, endpoints_of
from shared.openai.row_limits import RowLimits

GOOD = """\
pools:
  cpu: {resources: {CPU: 1}}
  h100:
    accelerator_type: H100
    label_selector: {zone: a}
models:
  tiny-chat:
    source: ./weights/tiny
    pools: [cpu, h100]
    lora: {tiny-poet: ../poet}
    engine: {max_model_len: 1024}
    env: {VLLM_CPU_KVCACHE_SPACE: 1}
  org/mini:
    pools:
      - cpu
    engine: {runner: pooling}
"""


def load(folder: Path, text: str = GOOD) -> Catalog:
    path = folder / "catalog.yaml"
    path.write_text(text, encoding="utf-8")
    return load_catalog(path)


def test_fields_left_out_have_the_documented_defaults(tmp_path: Path) -> None:
    model = load(tmp_path).model("org/mini")

    assert model.source == "org/mini"
    assert model.endpoints == endpoints_of(["embed"])
    assert (model.min_replicas, model.max_replicas, model.idle_seconds) == (0, 1, 300)
    assert model.revision is None
    assert model.chat_template is None


def test_what_a_row_may_cost_fits_the_engine_where_the_operator_says_nothing() -> None:
    def limits(**fields: Any) -> RowLimits:
        return Model(name="m", pools=("cpu",), **fields).row_rules.limits

    assert limits().sequences == 256
    assert limits(engine={"max_num_seqs": 1024}).sequences == 1024
    assert limits(engine={"max_num_seqs": 4}).sequences == 128
    assert limits(engine={"runner": "pooling"}).sequences == 2048
    assert limits(engine={"max_logprobs": -1}).logprobs is None
    assert limits(engine={"max_logprobs": 5}).prompt_logprobs == 5
    assert limits(engine={"max_num_seqs": 4}, row_limits={"sequences": 2}).sequences == 2


def test_tenants_may_share_prefixes_by_name_or_all_of_them() -> None:
    assert Model(name="m", pools=("cpu",)).share_prefixes == ()
    for names in (("acme", "beta.b"), ("*",)):
        assert Model(name="m", pools=("cpu",), share_prefixes=names).share_prefixes == names
    with pytest.raises(ValidationError, match="share_prefixes"):
        Model(name="m", pools=("cpu",), share_prefixes=("ac*",))


def test_a_prediction_knows_the_context_that_the_operator_set() -> None:
    model = Model(name="m", pools=("cpu",), engine={"max_model_len": 4096})

    assert model.row_rules.max_output == 4096


@pytest.mark.parametrize("field", ["cache_salt", "priority", "request_id", "no field"])
def test_what_the_worker_sets_cannot_be_opened(field: str) -> None:
    with pytest.raises(ValidationError, match="extra_fields"):
        Model(name="m", pools=("cpu",), extra_fields=(field,))


def test_a_model_that_generates_has_every_endpoint_that_generates(tmp_path: Path) -> None:
    model = load(tmp_path).model("tiny-chat")

    assert model.endpoints == endpoints_of(["generate"])


@pytest.mark.parametrize(
    ("config", "engine", "tasks"),
    [
        ({"architectures": ["Qwen2ForCausalLM"]}, {}, ("generate",)),
        ({"architectures": ["Qwen2ForCausalLM"]}, {"runner": "pooling"}, ("embed",)),
        ({"architectures": ["Qwen2ForCausalLM"]}, {"convert": "classify"}, ("classify",)),
        ({"architectures": ["BertModel"]}, {}, ("embed",)),
        (
            {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}},
            {"runner": "pooling"},
            ("rerank",),
        ),
        ({"architectures": ["BertForSequenceClassification"]}, {}, ("classify",)),
        ({"architectures": ["ModernBertForTokenClassification"]}, {}, ("token_classify",)),
        ({"architectures": ["HF_ColBERT"]}, {}, ("token_embed",)),
        ({"architectures": ["WhisperForConditionalGeneration"]}, {}, ("transcription",)),
        ({"architectures": ["VoxtralForConditionalGeneration"]}, {}, ("generate", "transcription")),
        (
            {"architectures": ["Qwen3ForCausalLM"]},
            {
                "hf_overrides": {
                    "architectures": ["Qwen3ForSequenceClassification"],
                    "classifier_from_token": ["no", "yes"],
                    "method": "from_2_way_softmax",
                }
            },
            ("rerank",),
        ),
        (
            {"architectures": ["BertModel"]},
            {"pooler_config": {"task": "token_embed"}},
            ("token_embed",),
        ),
    ],
)
def test_what_a_model_does_follows_from_its_files_and_its_engines_arguments(
    tmp_path: Path, config: dict[str, Any], engine: dict[str, Any], tasks: tuple[Task, ...]
) -> None:
    (tmp_path / "weights/tiny").mkdir(parents=True)
    (tmp_path / "weights/tiny/config.json").write_text(json.dumps(config))

    text = GOOD.replace("{max_model_len: 1024}", json.dumps(engine))
    model = load(tmp_path, text).model("tiny-chat")

    assert model.tasks == tasks
    assert model.endpoints == endpoints_of(tasks)
    assert (model.runner == "generate") == any(task in GENERATING for task in tasks)


def test_what_the_operator_says_of_a_model_counts_more_than_its_files(tmp_path: Path) -> None:
    (tmp_path / "weights/tiny").mkdir(parents=True)
    (tmp_path / "weights/tiny/config.json").write_text('{"architectures": ["BertModel"]}')
    text = GOOD.replace("    pools: [cpu, h100]", "    pools: [cpu, h100]\n    tasks: [rerank]")

    assert load(tmp_path, text).model("tiny-chat").tasks == ("rerank",)


def test_relative_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    model = load(tmp_path).model("tiny-chat")

    assert model.source == str(tmp_path.resolve() / "weights/tiny")
    assert model.lora == {"tiny-poet": str(tmp_path.resolve().parent / "poet")}


def test_numbers_in_env_become_text(tmp_path: Path) -> None:
    assert load(tmp_path).model("tiny-chat").env == {"VLLM_CPU_KVCACHE_SPACE": "1"}


def test_an_engine_argument_that_is_null_is_left_out(tmp_path: Path) -> None:
    """`None` is a default of many of vLLM's arguments, and no number of ours."""
    text = GOOD.replace("{max_model_len: 1024}", "{max_num_seqs: null, max_model_len: ~}")

    model = load(tmp_path, text).models["tiny-chat"]

    assert model.engine == {}
    assert model.seats == DEFAULT_SEATS


def test_an_adapter_is_served_by_the_engine_of_its_model(tmp_path: Path) -> None:
    catalog = load(tmp_path)

    assert catalog.model("tiny-poet") is catalog.model("tiny-chat")
    assert catalog.lane_of("tiny-poet") == catalog.lane_of("tiny-chat")
    assert catalog.served_names() == ("tiny-chat", "tiny-poet", "org/mini")


def test_lanes_are_in_order_of_preference(tmp_path: Path) -> None:
    catalog = load(tmp_path)

    assert catalog.lanes_of("tiny-chat") == (Lane("tiny-chat", "cpu"), Lane("tiny-chat", "h100"))
    assert catalog.lane_of("tiny-chat") == Lane("tiny-chat", "cpu")


def test_names_of_lanes_are_safe_everywhere_and_lead_back(tmp_path: Path) -> None:
    catalog = load(tmp_path)
    names = [lane.name for lane in catalog.lanes()]

    assert names == ["tiny-chat@cpu", "tiny-chat@h100", "org--mini@cpu"]
    assert all(re.fullmatch(r"[A-Za-z0-9._@-]+", name) for name in names)
    assert [catalog.lane_named(name) for name in names] == list(catalog.lanes())


def test_an_unknown_model_is_refused_in_openais_words(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="`gpt-5`") as caught:
        load(tmp_path).model("gpt-5")

    assert caught.value.param == "model"
    assert caught.value.code == "model_not_found"


def test_an_unknown_lane_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        load(tmp_path).lane_named("tiny-chat@moon")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("max_model_len: 1024", "max_model_len: 2048"),
        ("{tiny-poet: ../poet}", "{tiny-poet: ../painter}"),
        ("KVCACHE_SPACE: 1", "KVCACHE_SPACE: 2"),
        ("weights/tiny", "weights/other"),
        ("  cpu: {resources: {CPU: 1}}", "  cpu: {resources: {CPU: 2}}"),
        ("    lora:", "    max_replicas: 3\n    lora:"),
    ],
)
def test_the_fingerprint_changes_with_the_engine(tmp_path: Path, old: str, new: str) -> None:
    lane = Lane("tiny-chat", "cpu")
    before = load(tmp_path).fingerprint(lane)

    assert old in GOOD
    assert load(tmp_path, GOOD.replace(old, new)).fingerprint(lane) != before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("runner: pooling", "runner: pooling, seed: 4"),
        ("    lora:", "    max_enqueued_tokens: 3\n    lora:"),
    ],
)
def test_the_fingerprint_does_not_change_with_anything_else(
    tmp_path: Path, old: str, new: str
) -> None:
    lane = Lane("tiny-chat", "cpu")
    before = load(tmp_path)
    after = load(tmp_path, GOOD.replace(old, new))

    assert after != before
    assert after.fingerprint(lane) == before.fingerprint(lane)
    assert before.fingerprint(Lane("tiny-chat", "h100")) != before.fingerprint(lane)
    assert before.app_name(lane) == f"tiny-chat@cpu.{before.fingerprint(lane)}"


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ("tensor_parallel_size: 2", "the pool gives each worker 0.25 of a GPU"),
        ("gpu_memory_utilization: 0.9", "more than the pool's 0.25 of a GPU"),
    ],
)
def test_what_does_not_fit_on_a_part_of_a_gpu_is_refused_at_its_line(
    tmp_path: Path, argument: str, reason: str
) -> None:
    text = GOOD.replace("{CPU: 1}", "{GPU: 0.25}").replace("runner: pooling", argument)

    with pytest.raises(CatalogError) as raised:
        load(tmp_path, text)

    field = argument.partition(":")[0]
    assert f"catalog.yaml:16: models.org/mini.engine.{field}: on pool `cpu`" in str(raised.value)
    assert reason in str(raised.value)


def test_a_catalog_travels_as_json(tmp_path: Path) -> None:
    catalog = load(tmp_path)

    assert Catalog.model_validate_json(catalog.model_dump_json()) == catalog


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("source:", "sorce:", 8, "models.tiny-chat.sorce: there is no such field"),
        ("    pools: [cpu, h100]\n", "", 7, "models.tiny-chat.pools: Field required"),
        ("[cpu, h100]", "cpu", 9, "models.tiny-chat.pools: Input should be a valid tuple"),
        ("[cpu, h100]", "[]", 9, "models.tiny-chat.pools"),
        ("[cpu, h100]", "[cpu, cpu]", 7, "a pool is named twice"),
        (
            "      - cpu",
            "      - gpu",
            15,
            "models.org/mini.pools.0: no pool `gpu`; there are: cpu",
        ),
        ("CPU: 1}}", "CPU: many}}", 2, "pools.cpu.resources.CPU: Input should be a valid number"),
        ("CPU: 1}}", "CPU: 0}}", 2, "Input should be greater than 0 (value: 0)"),
        ("{resources: {CPU: 1}}", "{}", 2, "needs an accelerator_type or resources"),
        ("{CPU: 1}}", "{GPU: 1.5}}", 2, "GPU is 1.5: it is a part of one GPU, or a number of"),
        (
            "SPACE: 1",
            "SPACE: yes",
            12,
            "env.VLLM_CPU_KVCACHE_SPACE: Input should be a valid string",
        ),
        ("runner: pooling", "model: x", 16, "models.org/mini.engine.model: may not be set here"),
        ("runner: pooling", "data_parallel_size: 2", 16, "data_parallel_size: data parallel eng"),
        (
            "runner: pooling",
            "distributed_executor_backend: mp",
            16,
            "follows from the pool, and may only be `ray`",
        ),
        ("runner: pooling", "data_parallel_backend: ray", 16, "Use `max_replicas`"),
        ("engine: {runner", "min_replicas: 3\n    engine: {runner", 13, "min_replicas 3 is above"),
        # Operators' own adapters run with several fronts (tests/engine/test_engine.py).
        (
            "engine: {runner",
            "tenant_lora: {}\n    fronts: 2\n    engine: {runner",
            13,
            "tenant_lora needs `fronts: 1`",
        ),
        ("org/mini:", "tiny-chat:", 13, "models.tiny-chat: written twice, first on line 7"),
        ("org/mini:", "org mini:", 13, "models.org mini: String should match"),
        ("org/mini:", "tiny-poet:", 13, "the name `tiny-poet` is taken by model `tiny-chat`"),
        ("tiny-chat:", "org--mini:", 13, "too like `org--mini`"),
        ("org/mini:", "org/mini:\n    name: other", 14, "leave it out: the key is the name"),
        ("models:\n", "modells: {}\nmodels:\n", 6, "modells: there is no such field"),
        ("[cpu, h100]", "[cpu, h100", 10, "not YAML"),
        ("source: ./weights/tiny", "revision: 2024-13-45", 8, "put it in quotes if it is a text"),
        ("CPU: 1}}", "CPU: .inf}}", 2, "Input should be a finite number"),
        ("lora:", "idle_seconds: .inf\n    lora:", 10, "idle_seconds: Input should be a finite"),
        ("len: 1024", f"len: {'9' * 5000}", 11, "not YAML: Exceeds the limit"),
        ("{max_model_len: 1024}", "&a {hf_overrides: *a}", 1, "an anchor that holds itself"),
    ],
)
def test_a_mistake_is_reported_with_its_line_and_field(
    tmp_path: Path, old: str, new: str, line: int, message: str
) -> None:
    assert old in GOOD
    with pytest.raises(CatalogError) as caught:
        load(tmp_path, GOOD.replace(old, new, 1))

    first = str(caught.value).splitlines()[0]
    assert first.startswith(f"{tmp_path / 'catalog.yaml'}:{line}: ")
    assert message in first


def test_every_mistake_is_reported_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("source:", "sorce:").replace("CPU: 1}}", "CPU: many}}")

    with pytest.raises(CatalogError) as caught:
        load(tmp_path, text)

    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n", "42\n"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(CatalogError, match=r":1: "):
        load(tmp_path, text)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="cannot be read"):
        load_catalog(tmp_path / "absent.yaml")


@pytest.mark.parametrize(
    ("encoded", "line"),
    [(f"{GOOD}# Größe".encode("latin-1"), 17), (GOOD.encode("utf-16"), 1)],
)
def test_a_file_that_is_no_utf_8_is_reported(tmp_path: Path, encoded: bytes, line: int) -> None:
    path = tmp_path / "catalog.yaml"
    path.write_bytes(encoded)

    with pytest.raises(CatalogError, match=rf"catalog\.yaml:{line}: not UTF-8"):
        load_catalog(path)


def test_models_whose_engines_run_code_of_their_weights_are_named(tmp_path: Path) -> None:
    text = GOOD.replace("{runner: pooling}", "{runner: pooling, trust_remote_code: true}")

    assert (load(tmp_path).trusting(), load(tmp_path, text).trusting()) == ((), ("org/mini",))
