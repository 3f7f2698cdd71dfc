"""Predicted tokens of images, beside the processors of models. Needs transformers and no engine."""

import random
from pathlib import Path

import pytest

from cli.models.vision import make_tiny_vision_model
from shared.catalog_file import image_rule_in
from shared.openai.image_rules import image_rule_of

pytest.importorskip("transformers", reason="needs the worker's dependencies")
pytestmark = pytest.mark.filterwarnings("ignore")


def test_qwens_images_count_as_its_processor_cuts_them() -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    sizes = random.Random(1)
    for part, least, most in ((28, 3136, 1_003_520), (28, 3136, 12_845_056), (32, 65_536, 2**24)):
        processor = {
            "patch_size": part // 2,
            "merge_size": 2,
            "min_pixels": least,
            "max_pixels": most,
        }
        rule = image_rule_of({"model_type": "qwen2_vl"}, processor)
        assert rule is not None
        for _ in range(2000):
            width, height = sizes.randint(20, 5000), sizes.randint(30, 3000)
            rows, columns = smart_resize(
                height, width, factor=part, min_pixels=least, max_pixels=most
            )
            assert rule.tokens(width, height) == rows // part * (columns // part), (width, height)


def test_pixtrals_images_count_as_its_processor_cuts_them() -> None:
    import numpy as np
    from transformers.models.pixtral.image_processing_pil_pixtral import (
        get_resize_output_image_size,
    )

    vision = {"model_type": "pixtral", "image_size": 1540, "patch_size": 14}
    config = {"model_type": "mistral3", "spatial_merge_size": 2, "vision_config": vision}
    rule = image_rule_of(config, {})
    assert rule is not None
    sizes = random.Random(2)
    for _ in range(200):
        width, height = sizes.randint(1, 4000), sizes.randint(1, 4000)
        # It asks for no more than the shape.
        image = np.broadcast_to(np.uint8(0), (height, width, 3))
        rows, columns = get_resize_output_image_size(image, size=1540, patch_size=28)
        assert rule.tokens(width, height) == rows // 28 * (columns // 28 + 1), (width, height)


def test_idefics_images_count_as_its_processor_cuts_them(tmp_path: Path) -> None:
    from transformers import AutoProcessor

    folder = make_tiny_vision_model(tmp_path / "model")
    rule = image_rule_in(folder)
    assert rule is not None
    processor = AutoProcessor.from_pretrained(folder)
    random_sizes = random.Random(3)
    sizes = [(random_sizes.randint(1, 300), random_sizes.randint(1, 300)) for _ in range(2000)]

    found = processor._get_num_multimodal_tokens(image_sizes=sizes)  # noqa: SLF001  # the only one

    assert [rule.tokens(width, height) for height, width in sizes] == found.num_image_tokens


def test_glms_images_count_as_its_processor_cuts_them() -> None:
    from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil

    size = {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 3000}
    processor = Glm4vImageProcessorPil(size=size)
    rule = image_rule_of({"model_type": "glm4v"}, processor.to_dict())
    assert rule is not None
    sizes = random.Random(4)
    for _ in range(2000):
        width, height = sizes.randint(28, 5000), sizes.randint(30, 3000)
        patches = processor.get_number_of_image_patches(height, width, {})
        assert rule.tokens(width, height) == patches // 4, (width, height)


@pytest.mark.parametrize("model_type", ["internvl", "internvl_chat"])
def test_internvls_images_count_as_its_processors_cut_them(model_type: str) -> None:
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import (
        GotOcr2ImageProcessorPil,
    )

    size = {"height": 448, "width": 448}
    processor = GotOcr2ImageProcessorPil(size=size, crop_to_patches=True, max_patches=12)
    config = {
        "model_type": model_type,
        "image_seq_length": 256,
        "vision_config": {"image_size": 448, "patch_size": 14},
        "downsample_ratio": 0.5,
        "dynamic_image_size": True,
        "use_thumbnail": True,
        "min_dynamic_patch": 1,
        "max_dynamic_patch": 12,
    }
    rule = image_rule_of(config, processor.to_dict())
    assert rule is not None
    random_sizes = random.Random(5)
    squares = [(side, side) for side in (1, 448, 600, 1000, 1400)]
    sizes = [(random_sizes.randint(1, 3000), random_sizes.randint(1, 3000)) for _ in range(2000)]
    for width, height in squares + sizes:
        if model_type == "internvl":
            tiles = processor.get_number_of_image_patches(height, width, {})
        else:
            tiles = _tiles_of_vllm(width, height)
        assert rule.tokens(width, height) == 256 * tiles + 2, (width, height)


def _tiles_of_vllm(width: int, height: int) -> int:
    """What vLLM's own processor of InternVL's older files cuts."""
    vllm = pytest.importorskip("vllm.transformers_utils.processors.internvl")
    tiles, _, _ = vllm.calculate_internvl_targets(
        orig_width=width,
        orig_height=height,
        target_ratios=vllm.get_internvl_target_ratios(1, 12),
        image_size=448,
        use_thumbnail=True,
    )
    return int(tiles)


def test_llava_nexts_images_count_as_its_processor_cuts_them() -> None:
    from transformers.models.llava_next.image_processing_pil_llava_next import (
        LlavaNextImageProcessorPil,
    )
    from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor

    sizes = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
    config = {
        "model_type": "llava_next",
        "vision_config": {"image_size": 336, "patch_size": 14},
        "image_grid_pinpoints": sizes,
    }
    rule = image_rule_of(config, {})
    assert rule is not None
    # Its counting asks for no tokenizer.
    processor = LlavaNextProcessor.__new__(LlavaNextProcessor)
    processor.image_processor = LlavaNextImageProcessorPil(image_grid_pinpoints=sizes)
    processor.patch_size, processor.num_additional_image_tokens = 14, 0
    random_sizes = random.Random(6)
    for _ in range(2000):
        width, height = random_sizes.randint(1, 3000), random_sizes.randint(1, 3000)
        found = processor._get_number_of_features(height, width, 336, 336)  # noqa: SLF001  # the only one
        assert rule.tokens(width, height) == found, (width, height)
