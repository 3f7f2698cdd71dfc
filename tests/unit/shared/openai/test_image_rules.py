import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from shared.catalog_file import image_rule_in, load_catalog
from shared.input.validation import InputCheck
from shared.openai.image_rules import ImageRule, image_rule_of

_QWEN = {"model_type": "qwen2_5_vl", "vision_config": {"patch_size": 14, "spatial_merge_size": 2}}
_QWEN_SIZES = {"min_pixels": 3136, "max_pixels": 1_003_520}
_MISTRAL = {
    "model_type": "mistral3",
    "spatial_merge_size": 2,
    "vision_config": {"model_type": "pixtral", "image_size": 1540, "patch_size": 14},
}
_IDEFICS = {"model_type": "idefics3"}
_TILES = {
    "size": {"longest_edge": 1456},
    "max_image_size": {"longest_edge": 364},
    "image_seq_len": 169,
}


@pytest.mark.parametrize(
    ("config", "processor", "size", "tokens"),
    [
        # As vLLM 0.29 counts them.
        (_QWEN, _QWEN_SIZES, (1024, 1024), 1225),
        (_QWEN, _QWEN_SIZES, (640, 480), 391),
        (_QWEN, _QWEN_SIZES, (10, 10), 4),
        (_QWEN, {"size": {"shortest_edge": 3136, "longest_edge": 1_003_520}}, (640, 480), 391),
        (
            {"model_type": "qwen3_vl"},
            {
                "patch_size": 16,
                "merge_size": 2,
                "size": {"shortest_edge": 65536, "longest_edge": 16777216},
            },
            (640, 480),
            300,
        ),
        (_MISTRAL, {}, (1540, 1540), 55 * 56),
        (_MISTRAL, {}, (3080, 1540), 28 * 56),
        (_MISTRAL, {}, (30, 20), 3),
        ({"model_type": "gemma3"}, {}, (4000, 3000), 256),
        (
            {"model_type": "llava", "vision_config": {"image_size": 336, "patch_size": 14}},
            {},
            (9, 9),
            576,
        ),
        (
            {"model_type": "paligemma", "vision_config": {"image_size": 224, "patch_size": 14}},
            {},
            (9, 9),
            256,
        ),
        # Four by four tiles, four by two, and the whole once more.
        (_IDEFICS, _TILES, (500, 500), 4 * (4 * 171 + 1) + 172),
        (_IDEFICS, _TILES, (200, 100), 2 * (4 * 171 + 1) + 172),
        ({"model_type": "smolvlm"}, _TILES, (1, 5000), 4 * (171 + 1) + 172),
        (_IDEFICS, {**_TILES, "do_image_splitting": False}, (500, 500), 172),
    ],
)
def test_an_image_counts_as_the_models_files_say(
    config: dict[str, Any], processor: dict[str, Any], size: tuple[int, int], tokens: int
) -> None:
    rule = image_rule_of(config, processor)

    assert rule is not None
    assert rule.tokens(*size) == tokens


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "qwen2"},
        {"model_type": "pixtral", "vision_config": {}},
        {"model_type": "llava", "vision_config": {"image_size": "large", "patch_size": 14}},
        {"model_type": "llava", "vision_config": [1]},
        {"model_type": "mistral3", "vision_config": {"image_size": 0, "patch_size": 0}},
        _IDEFICS,
        {},
    ],
)
def test_files_of_an_unknown_form_tell_nothing(config: dict[str, Any]) -> None:
    assert image_rule_of(config, {}) is None


def test_a_batch_counts_images_by_the_files_of_its_model(tmp_path: Path) -> None:
    (tmp_path / "qwen").mkdir()
    (tmp_path / "qwen/config.json").write_text(json.dumps(_QWEN))
    (tmp_path / "qwen/preprocessor_config.json").write_text(json.dumps(_QWEN_SIZES))
    (tmp_path / "catalog.yaml").write_text(
        "pools: {cpu: {resources: {CPU: 1}}}\n"
        "models:\n"
        "  sees: {source: ./qwen, pools: [cpu]}\n"
        "  told: {source: ./qwen, pools: [cpu], image_tokens: {fixed: 7}}\n"
        "  plain: {pools: [cpu]}\n"
    )
    catalog = load_catalog(tmp_path / "catalog.yaml")

    found = {}
    for name in ("sees", "told", "plain"):
        check = InputCheck(
            endpoint="/v1/chat/completions",
            models=catalog.endpoints_by_name(),
            rules=catalog.rules_by_name(),
        )
        [without] = check.feed(_line(name, "text") + b"\n")
        [row] = check.feed(_line(name, _png(2000, 3000)) + b"\n")
        found[name] = row.tokens - without.tokens
    # The URL's own words count as well.
    assert found["sees"] - found["told"] == image_rule_tokens(2000, 3000) - 7
    assert found["plain"] - found["told"] == 72 * 108 - 7


def test_what_a_processor_says_may_be_in_one_file_or_two(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(_IDEFICS))
    sizes = {name: value for name, value in _TILES.items() if name != "image_seq_len"}
    own = {"image_seq_len": 169}
    one = {"processor_config.json": {**own, "image_processor": sizes}}
    two = {"processor_config.json": own, "preprocessor_config.json": sizes}

    rules = []
    for files in (one, two):
        for name, content in files.items():
            (tmp_path / name).write_text(json.dumps(content))
        rules.append(image_rule_in(tmp_path))

    assert rules == [ImageRule(tile=364, longest=1456, tile_tokens=169)] * 2


def image_rule_tokens(width: int, height: int) -> int:
    rule = image_rule_of(_QWEN, _QWEN_SIZES)
    assert isinstance(rule, ImageRule)
    return rule.tokens(width, height)


def _png(width: int, height: int) -> str:
    head = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + struct.pack(">II", width, height)
    return "data:image/png;base64," + base64.b64encode(head + bytes(1000)).decode()


def _line(model: str, url: str) -> bytes:
    part = {"type": "image_url", "image_url": {"url": url}}
    if url == "text":
        part = {"type": "text", "text": ""}
    content = [{"role": "user", "content": [part]}]
    body = {"model": model, "messages": content, "max_tokens": 1}
    return json.dumps(
        {
            "custom_id": url[:9] + model,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": body,
        }
    ).encode()
