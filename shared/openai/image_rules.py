"""How many tokens of a prompt an image is, as a model's own files say. Pure.

The rules are those of the models' processors. An image becomes a grid of parts, and each part is a
token.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

#: Of Qwen's processors, where their files do not say them.
_QWEN_PATCH, _QWEN_MERGE, _QWEN_LEAST, _QWEN_MOST = 14, 2, 56 * 56, 14 * 14 * 4 * 1280

#: Of GLM's.
_GLM_PATCH, _GLM_MERGE, _GLM_FRAMES = 14, 2, 2
_GEMMA_TOKENS = 256


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
    #: Of models that take the grid of tiles that is most like the image in shape: the fewest and
    #: the most tiles of one image, without the one in which it is seen whole if it has several.
    least_tiles: int = Field(default=1, ge=1)
    most_tiles: int | None = Field(default=None, ge=1)
    #: Of models that fit an image into one of these sizes, each as height and width, and see what
    #: is not the edge, in parts of `part` pixels, and the whole in one tile.
    sizes: tuple[tuple[int, int], ...] = ()

    def tokens(self, width: int, height: int) -> int:
        """Of an image of this size in pixels."""
        if self.fixed is not None:
            return self.fixed
        width, height = max(1, width), max(1, height)
        if self.tile is not None and self.sizes:
            return self._in_sizes(width, height, self.tile)
        if self.tile is not None and self.most_tiles is not None:
            return self._in_grid(width, height, self.tile, self.most_tiles)
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

    def _in_grid(self, width: int, height: int, tile: int, most: int) -> int:
        """As InternVL's processor has it: of equal shapes, the larger if the image is as large."""
        grids = {
            (columns, rows)
            for columns in range(1, most + 1)
            for rows in range(1, most + 1)
            if self.least_tiles <= columns * rows <= most
        }
        best, difference = (1, 1), math.inf
        for columns, rows in sorted(grids, key=lambda grid: (grid[0] * grid[1], grid)):
            other = abs(width / height - columns / rows)
            is_filled = width * height > 0.5 * tile**2 * columns * rows
            if other < difference or (other == difference and is_filled):
                best, difference = (columns, rows), other
        tiles = best[0] * best[1]
        return (tiles + 1 if tiles > 1 else 1) * self.tile_tokens + 2

    def _in_sizes(self, width: int, height: int, tile: int) -> int:
        """As LLaVA-NeXT's processor has it, with a mark after each row."""

        def fit(size: tuple[int, int]) -> tuple[int, int]:
            scale = min(size[1] / width, size[0] / height)
            seen = min(int(width * scale) * int(height * scale), width * height)
            return seen, seen - size[0] * size[1]

        best, side = max(self.sizes, key=fit), tile // self.part
        rows, columns = (length // tile * side for length in best)
        if width / height > columns / rows:
            rows -= (rows - int(round(height * (columns / width), 7))) // 2 * 2
        else:
            columns -= (columns - int(round(width * (rows / height), 7))) // 2 * 2
        return rows * (columns + 1) + side**2

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
    try:
        make = _maker(config, processor)
        return make(config, processor) if make else None
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        # Files of a form that is not known here.
        return None


def _maker(config: Mapping[str, Any], processor: Mapping[str, Any]) -> "_Maker | None":
    kind = str(config.get("model_type", ""))
    if kind in _MAKERS:
        return _MAKERS[kind]
    # The image processor has one name for each library.
    cut_by = str(processor.get("image_processor_type", ""))
    for kinds, name, make in _FAMILIES:
        if kind.startswith(kinds) or cut_by.startswith(name):
            return make
    return _of_pixtral if _vision(config).get("model_type") == "pixtral" else None


def _of_qwen(config: Mapping[str, Any], processor: Mapping[str, Any]) -> ImageRule:
    vision, size = _vision(config), processor.get("size") or {}
    patch = processor.get("patch_size") or vision.get("patch_size") or _QWEN_PATCH
    merge = processor.get("merge_size") or vision.get("spatial_merge_size") or _QWEN_MERGE
    least = processor.get("min_pixels") or size.get("shortest_edge") or _QWEN_LEAST
    most = processor.get("max_pixels") or size.get("longest_edge") or _QWEN_MOST
    return ImageRule(part=patch * merge, least_pixels=least, most_pixels=most)


def _of_glm(config: Mapping[str, Any], processor: Mapping[str, Any]) -> ImageRule:
    vision, size = _vision(config), processor["size"]
    part = processor.get("patch_size", vision.get("patch_size", _GLM_PATCH)) * processor.get(
        "merge_size", vision.get("spatial_merge_size", _GLM_MERGE)
    )
    # Its bounds are those of the frames of a video together, and an image has as many.
    frames = processor.get("temporal_patch_size", _GLM_FRAMES)
    return ImageRule(
        part=part,
        least_pixels=math.ceil(size["shortest_edge"] / frames),
        most_pixels=size["longest_edge"] // frames,
    )


def _of_internvl(config: Mapping[str, Any], processor: Mapping[str, Any]) -> ImageRule:
    if config.get("model_type") == "internvl":
        tile = processor["size"]["height"]
        is_cut = processor.get("crop_to_patches", False)
        least, most = processor.get("min_patches", 1), processor.get("max_patches", 12)
        tokens = config["image_seq_length"]
    else:
        vision = _vision(config)
        tile = config.get("force_image_size") or vision["image_size"]
        is_cut = config["dynamic_image_size"]
        least, most = config["min_dynamic_patch"], config["max_dynamic_patch"]
        tokens = int((tile // vision["patch_size"]) ** 2 * config["downsample_ratio"] ** 2)
        if is_cut and not config.get("use_thumbnail"):
            # Nowhere is it seen whole, which no rule here says.
            raise ValueError
    return ImageRule(
        tile=tile,
        tile_tokens=tokens,
        least_tiles=least if is_cut else 1,
        most_tiles=most if is_cut else 1,
    )


def _of_llava_next(config: Mapping[str, Any], _: Mapping[str, Any]) -> ImageRule:
    vision = _vision(config)
    return ImageRule(
        tile=vision["image_size"], part=vision["patch_size"], sizes=config["image_grid_pinpoints"]
    )


def _of_pixtral(config: Mapping[str, Any], _: Mapping[str, Any]) -> ImageRule:
    vision = _vision(config)
    part = vision["patch_size"] * config.get("spatial_merge_size", 1)
    return ImageRule(part=part, longest=vision["image_size"], ends_rows=True)


def _of_idefics(_: Mapping[str, Any], processor: Mapping[str, Any]) -> ImageRule:
    tile = processor["max_image_size"]["longest_edge"]
    is_cut = processor.get("do_image_splitting", True)
    longest = processor["size"]["longest_edge"] if is_cut else tile
    return ImageRule(tile=tile, longest=longest, tile_tokens=processor["image_seq_len"])


def _of_gemma(config: Mapping[str, Any], _: Mapping[str, Any]) -> ImageRule:
    tokens = config.get("mm_tokens_per_image") or config.get("vision_soft_tokens_per_image")
    return ImageRule(fixed=tokens or _GEMMA_TOKENS)


def _of_one_size(config: Mapping[str, Any], _: Mapping[str, Any]) -> ImageRule:
    vision = _vision(config)
    return ImageRule(fixed=int(vision["image_size"] // vision["patch_size"]) ** 2)


def _vision(config: Mapping[str, Any]) -> Mapping[str, Any]:
    vision = config.get("vision_config")
    return vision if isinstance(vision, Mapping) else {}


_Maker = Callable[[Mapping[str, Any], Mapping[str, Any]], ImageRule]
#: By the `model_type` of the configuration.
_MAKERS: Mapping[str, _Maker] = {
    "gemma3": _of_gemma,
    "gemma3n": _of_gemma,
    "idefics3": _of_idefics,
    "internvl": _of_internvl,
    "internvl_chat": _of_internvl,
    "llava": _of_one_size,
    "llava_next": _of_llava_next,
    "mistral3": _of_pixtral,
    "paligemma": _of_one_size,
    "pixtral": _of_pixtral,
    "smolvlm": _of_idefics,
}
#: By what the `model_type` begins with, or the image processor's name does.
_FAMILIES: tuple[tuple[tuple[str, ...], str, _Maker], ...] = (
    (
        ("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni", "qwen3_vl", "qwen3_omni", "qwen3_5"),
        "Qwen2VLImageProcessor",
        _of_qwen,
    ),
    (("glm4v",), "Glm4vImageProcessor", _of_glm),
)
