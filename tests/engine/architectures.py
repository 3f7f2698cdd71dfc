"""Which architectures of vLLM's registry cannot be imported, and why.

Run by its path, it says so as if the machine had a GPU: `{"not_imported": {NAME: WHY}, …}`.
"""

import contextlib
import json
import sys
from typing import Any, NamedTuple


class Imports(NamedTuple):
    #: Names that failed: what is missing, a package or `CUDA`.
    not_imported: dict[str, str]
    #: How many of them see or hear.
    media: int


def imports() -> Imports:
    """Tries each architecture, after what each process of vLLM does before it looks for a model."""
    from vllm.model_executor.models import registry
    from vllm.plugins import load_general_plugins

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
    return Imports(why, len(why.keys() & registry._MULTIMODAL_MODELS.keys()))  # noqa: SLF001  # no other way


def _take_a_card_for_granted() -> None:
    """Have vLLM choose CUDA and an H100, neither of which it asks for; its kernels are its own."""
    from vllm import platforms
    from vllm.platforms.cuda import CudaPlatformBase
    from vllm.platforms.interface import DeviceCapability

    class WithoutACard(CudaPlatformBase):
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
            return DeviceCapability(9, 0)

    given: Any = WithoutACard()
    platforms._current_platform = given  # noqa: SLF001  # no other way


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        _take_a_card_for_granted()
        found = imports()
    sys.stdout.write(json.dumps(found._asdict()))
