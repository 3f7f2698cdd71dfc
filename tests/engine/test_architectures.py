"""What we say that a model does, beside vLLM's own registry. Needs vLLM and no engine."""

import pytest

from shared.architectures import BY_ENDING, BY_NAME, tasks_of
from shared.openai.endpoints import POOLING

pytest.importorskip("vllm", reason="needs the worker's dependencies")
pytestmark = pytest.mark.filterwarnings("ignore")


def test_the_endings_are_those_of_vllm() -> None:
    from vllm.config.model import iter_architecture_defaults

    kinds = {"none": {"generate"}, "embed": {"embed"}, "classify": {"classify", "token_classify"}}
    table = iter_architecture_defaults()  # type: ignore[no-untyped-call]  # vLLM's
    theirs = [(ending, kinds[convert]) for ending, (_, convert) in table]

    assert [ending for ending, _ in theirs] == [ending for ending, _ in BY_ENDING]
    assert all(task in tasks for (_, task), (_, tasks) in zip(BY_ENDING, theirs, strict=True))


@pytest.mark.parametrize(
    ("registry", "task"),
    [
        ("_EMBEDDING_MODELS", "embed"),
        ("_LATE_INTERACTION_MODELS", "token_embed"),
        ("_REWARD_MODELS", "token_classify"),
        ("_TOKEN_CLASSIFICATION_MODELS", "token_classify"),
        ("_SEQUENCE_CLASSIFICATION_MODELS", "classify"),
    ],
)
def test_each_pooling_model_of_vllm_does_what_we_say(registry: str, task: str) -> None:
    from vllm.model_executor.models import registry as vllm

    writing = {*vllm._TEXT_GENERATION_MODELS, *vllm._MULTIMODAL_MODELS}  # noqa: SLF001  # no other way
    late = set(vllm._LATE_INTERACTION_MODELS) if task == "embed" else set()  # noqa: SLF001  # as above
    for name in set(getattr(vllm, registry)) - writing - late:
        [found] = tasks_of({"architectures": [name]}, {})
        assert found in POOLING, name
        if name not in BY_NAME:
            assert found == task, name


def test_what_only_hears_is_what_vllm_says() -> None:
    from vllm.model_executor.models.registry import ModelRegistry

    hearing = {name: tasks for name, tasks in BY_NAME.items() if "transcription" in tasks}
    assert hearing.keys() <= set(ModelRegistry.get_supported_archs())
    for name in ("WhisperForConditionalGeneration",):
        model = ModelRegistry.models[name].load_model_cls()
        assert model.supports_transcription_only == (hearing[name] == ("transcription",))
