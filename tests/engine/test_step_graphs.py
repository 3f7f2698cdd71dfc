"""Which steps of vLLM run as one CUDA graph. Starts no engine, and needs no card."""

from pathlib import Path
from typing import Any

import pytest

from cli.models.tiny import make_tiny_chat_model

pytest.importorskip("vllm", reason="needs the worker's dependencies")

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """vLLM's configuration of a model."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    folder: Path = tmp_path_factory.mktemp("models") / "chat"
    make_tiny_chat_model(folder)
    return AsyncEngineArgs(model=str(folder), max_model_len=64).create_engine_config()


@pytest.fixture
def card(config: Any, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """vLLM on a Hopper card, with what it chooses there by itself."""
    from vllm.config import CUDAGraphMode
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends import fa_utils

    monkeypatch.setattr(type(current_platform), "is_cuda", lambda _: True)
    monkeypatch.setattr(
        type(current_platform), "is_device_capability_family", lambda *of: of[-1] == 90
    )
    monkeypatch.setattr(fa_utils, "get_flash_attn_version", lambda: 3)
    mode = CUDAGraphMode.FULL_AND_PIECEWISE
    monkeypatch.setattr(config.compilation_config, "cudagraph_mode", mode)
    return monkeypatch


def graphs(config: Any, *, is_chosen: bool = False) -> str:
    """The mode of an engine with this configuration."""
    from worker.step_graphs import graph_prompts

    has_changed = graph_prompts(config, is_chosen=is_chosen)
    mode: str = config.compilation_config.cudagraph_mode.name
    assert has_changed == (mode == "FULL")
    return mode


@pytest.mark.usefixtures("card")
def test_steps_with_prompts_are_graphs_too(config: Any) -> None:
    assert graphs(config) == "FULL"


@pytest.mark.usefixtures("card")
def test_what_the_operator_has_chosen_stays(config: Any) -> None:
    assert graphs(config, is_chosen=True) == "FULL_AND_PIECEWISE"


def test_what_vllm_has_found_right_for_a_model_stays(config: Any, card: pytest.MonkeyPatch) -> None:
    from vllm.config import CUDAGraphMode

    card.setattr(config.compilation_config, "cudagraph_mode", CUDAGraphMode.PIECEWISE)

    assert graphs(config) == "PIECEWISE"


def test_attention_in_chunks_is_in_no_whole_graph(config: Any, card: pytest.MonkeyPatch) -> None:
    card.setattr(config.model_config, "attention_chunk_size", 32)

    assert graphs(config) == "FULL_AND_PIECEWISE"


def test_other_cards_have_vllms_default(config: Any, card: pytest.MonkeyPatch) -> None:
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends import fa_utils

    card.setattr(fa_utils, "get_flash_attn_version", lambda: 2)
    assert graphs(config) == "FULL_AND_PIECEWISE"

    card.setattr(fa_utils, "get_flash_attn_version", lambda: 3)
    card.setattr(type(current_platform), "is_device_capability_family", lambda *of: of[-1] == 100)
    assert graphs(config) == "FULL_AND_PIECEWISE"
