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
