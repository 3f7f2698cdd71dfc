"""The names that vLLM's Pixtral imports from transformers give what transformers itself does."""

from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="needs the worker's dependencies")
pytestmark = pytest.mark.filterwarnings("ignore")

_SIZES = ((64, 96), (112, 48))


def test_the_pixels_of_vllms_pixtral_become_what_transformers_makes_of_them(tmp_path: Path) -> None:
    import torch
    from transformers import PixtralVisionConfig, PixtralVisionModel
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import (
        cleanup_dist_env_and_memory,
        init_distributed_environment,
        initialize_model_parallel,
    )
    from vllm.plugins import load_general_plugins

    load_general_plugins()  # type: ignore[no-untyped-call]  # vLLM's
    from vllm.model_executor.models.pixtral import PixtralHFVisionModel

    config = PixtralVisionConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=128,
        patch_size=16,
        initializer_range=0.3,
    )
    torch.manual_seed(5)
    theirs = PixtralVisionModel(config).eval()
    images = [torch.randn(3, *size) for size in _SIZES]
    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(
            1, 0, f"file://{tmp_path / 'group'}", local_rank=0, backend="gloo"
        )
        initialize_model_parallel()
        try:
            ours = PixtralHFVisionModel(config)
            ours.load_weights(theirs.state_dict().items())
            for part in ours.modules():
                if (method := getattr(part, "quant_method", None)) is not None:
                    method.process_weights_after_loading(part)
            with torch.no_grad():
                found = torch.cat([*ours(images)])
        finally:
            cleanup_dist_env_and_memory()

    with torch.no_grad():
        expected = torch.cat(
            [
                theirs(image[None], image_sizes=[image.shape[1:]]).last_hidden_state[0]
                for image in images
            ]
        )
    assert found.shape == expected.shape == (4 * 6 + 7 * 3, 64)
    assert torch.allclose(found, expected, atol=1e-2)
    assert not torch.allclose(found[:24], expected[:24].flip(0), atol=1)
