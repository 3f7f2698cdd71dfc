"""How many tokens of a prompt an image is, as a model's own files say. Pure.

The rules are those of the models' processors. An image becomes a grid of parts, and each part is a
token.
"""

import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

#: Of Qwen's processors, where their files do not say them.
_QWEN_PATCH, _QWEN_MERGE, _QWEN_LEAST, _QWEN_MOST = 14, 2, 56 * 56, 14 * 14 * 4 * 1280


class ImageRule(BaseModel):
    """The rule of one model: a fixed number, or parts of so many pixels each way."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fixed: int | None = Field(default=None, ge=1)
    #: The side of a part, in pixels.
    part: int = Field(default=28, ge=1)
    #: The bounds of an image, which is made larger or smaller until it is within them.
    least_pixels: int = Field(default=1, ge=1)
    most_pixels: int | None = Field(default=None, ge=1)
    #: The longest side that an image may have, and whether each row of parts ends with one token.
    longest: int | None = Field(default=None, ge=1)
    ends_rows: bool = False
    #: Of models that cut an image into tiles and see it whole in one more: the side of a tile in
    #: pixels, and the tokens of what is in one. The image is made `longest` pixels long first.
    tile: int | None = Field(default=None, ge=1)
    tile_tokens: int = Field(default=64, ge=1)

    def tokens(self, width: int, height: int) -> int:
        """Of an image of this size in pixels."""
        if self.fixed is not None:
            return self.fixed
        width, height = max(1, width), max(1, height)
        if self.tile is not None:
            return self._in_tiles(width, height, self.tile)
        if self.longest is not None:
            shrink = max(1.0, width / self.longest, height / self.longest)
            rows, columns = (self._ceil(int(side / shrink)) for side in (height, width))
        else:
            rows, columns = self._within_pixels(height, width)
        return rows * (columns + self.ends_rows)

    def _in_tiles(self, width: int, height: int, tile: int) -> int:
        """With the marks around each tile and after each row, as Idefics3's processor has them."""
        longest, shape = self.longest or tile, width / height
        if width >= height:
            width, height = longest, int(longest / shape)
        else:
            width, height = int(longest * shape), longest
        rows, columns = (max(1, math.ceil(side / tile)) for side in (height, width))
        whole = self.tile_tokens + 3
        if rows == columns == 1:
            return whole
        return rows * (columns * (self.tile_tokens + 2) + 1) + whole

    def _within_pixels(self, height: int, width: int) -> tuple[int, int]:
        """The parts each way, as `smart_resize` of Qwen's processors finds them."""
        rows, columns = (round(side / self.part) for side in (height, width))
        pixels = rows * columns * self.part**2
        if self.most_pixels is not None and pixels > self.most_pixels:
            shrink = math.sqrt(height * width / self.most_pixels)
            rows, columns = (
                max(1, math.floor(side / shrink / self.part)) for side in (height, width)
            )
        elif pixels < self.least_pixels:
            grow = math.sqrt(self.least_pixels / (height * width))
            rows, columns = (math.ceil(side * grow / self.part) for side in (height, width))
        return max(1, rows), max(1, columns)

    def _ceil(self, side: int) -> int:
        return max(1, math.ceil(side / self.part))


def image_rule_of(config: Mapping[str, Any], processor: Mapping[str, Any]) -> ImageRule | None:
    """The rule of a model with this `config.json`, and what its processor's files say.

    None where they do not tell it, or in a way that is not known here.
    """
    kind = str(config.get("model_type", ""))
    try:
        if kind.startswith(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen2_5_omni")):
            return _of_qwen(config, processor)
        if kind in ("mistral3", "pixtral") or _vision(config).get("model_type") == "pixtral":
            return _of_pixtral(config)
        if kind in ("idefics3", "smolvlm"):
            return _of_idefics(processor)
        if (fixed := _fixed(kind, config)) is not None:
            return ImageRule(fixed=fixed)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        # Files of a form that is not known here.
        return None
    return None


def _of_qwen(config: Mapping[str, Any], processor: Mapping[str, Any]) -> ImageRule:
    vision, size = _vision(config), processor.get("size") or {}
    patch = processor.get("patch_size") or vision.get("patch_size") or _QWEN_PATCH
    merge = processor.get("merge_size") or vision.get("spatial_merge_size") or _QWEN_MERGE
    least = processor.get("min_pixels") or size.get("shortest_edge") or _QWEN_LEAST
    most = processor.get("max_pixels") or size.get("longest_edge") or _QWEN_MOST
    return ImageRule(part=patch * merge, least_pixels=least, most_pixels=most)


def _of_pixtral(config: Mapping[str, Any]) -> ImageRule:
    vision = _vision(config)
    part = vision["patch_size"] * config.get("spatial_merge_size", 1)
    return ImageRule(part=part, longest=vision["image_size"], ends_rows=True)


def _of_idefics(processor: Mapping[str, Any]) -> ImageRule:
    tile = processor["max_image_size"]["longest_edge"]
    is_cut = processor.get("do_image_splitting", True)
    longest = processor["size"]["longest_edge"] if is_cut else tile
    return ImageRule(tile=tile, longest=longest, tile_tokens=processor["image_seq_len"])


def _fixed(kind: str, config: Mapping[str, Any]) -> int | None:
    """Of models for which every image is of one size."""
    vision = _vision(config)
    match kind:
        case "gemma3":
            return int(config.get("mm_tokens_per_image", 256))
        case "llava" | "paligemma":
            return int(vision["image_size"] // vision["patch_size"]) ** 2
        case _:
            return None


def _vision(config: Mapping[str, Any]) -> Mapping[str, Any]:
    vision = config.get("vision_config")
    return vision if isinstance(vision, Mapping) else {}
