"""How many tokens of a prompt the media of a request are predicted to be. Pure.

Each model has its own rule, and its own processor; where its files tell the rule, it is followed
(`shared.openai.image_rules`). Most models cut an image into patches, and one token stands for about
28 by 28 pixels, within bounds; so the size in pixels says more than the bytes of the file. An image
that is elsewhere is not looked at, and counts as one of a usual size.
"""

import base64
import struct
from collections.abc import Mapping
from math import ceil
from typing import Any

from shared.openai.image_rules import ImageRule
from shared.openai.media import files_of

#: A token's part of an image, and the fewest and the most tokens of one, as Qwen's models have it.
_PIXELS, _FEWEST, _MOST = 28, 4, 16_384
#: Pixels each way of an image whose size is not known: one that is named by a URL, or is of another
#: format.
_USUAL = 896, 896
#: Tokens of a sound or a video that is named by a URL.
_UNKNOWN = 1_024
#: Bytes of a compressed sound, or of a video, for one token.
_BYTES_PER_TOKEN = 512
#: Characters of base64 in which an image's size stands; a JPEG may have a preview before it.
_HEAD = 96 * 1024
_PNG, _GIF = b"\x89PNG\r\n\x1a\n", (b"GIF87a", b"GIF89a")
#: Of a JPEG: what each marker begins with, and the kinds of frames' own headers.
_MARKER, _FRAMES = 0xFF, frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SOUNDS = frozenset({"audio_url", "file_url", "input_audio", "video_url"})


def may_have_media(line: bytes) -> bool:
    """False only if no request in this line names or holds a medium."""
    return b"_url" in line or b"_audio" in line or b'"source"' in line


def media_prediction(body: Mapping[str, Any], rule: ImageRule | None = None) -> tuple[int, int]:
    """The bytes of the request's media, as they stand in its line, and their tokens.

    `rule` is that of the model's images, if it is known.
    """
    size = tokens = 0
    for name, file in files_of(body):
        size += len(file)
        tokens += _sound_tokens(file) if name in _SOUNDS else image_tokens(file, rule)
    return size, tokens


def image_tokens(file: str, rule: ImageRule | None = None) -> int:
    """The tokens of an image: of its URL, or of its base64."""
    known = rule is not None and rule.fixed is not None
    found = None if known or _is_elsewhere(file) else _size(_head(file))
    width, height = found or _USUAL
    if rule is not None:
        return rule.tokens(width, height)
    return max(_FEWEST, min(_MOST, ceil(width / _PIXELS) * ceil(height / _PIXELS)))


def _sound_tokens(file: str) -> int:
    if _is_elsewhere(file):
        return _UNKNOWN
    return max(1, len(file) * 3 // 4 // _BYTES_PER_TOKEN)


def _is_elsewhere(file: str) -> bool:
    return "://" in file[:8]


def _head(file: str) -> bytes:
    # A `data:` URL has its media type before a comma.
    start = file.find(",", 0, 256) + 1
    text = file[start : start + _HEAD]
    try:
        return base64.b64decode(text[: len(text) // 4 * 4])
    except ValueError:
        return b""


def _size(head: bytes) -> tuple[int, int] | None:
    """Width and height in pixels; None if they cannot be told."""
    try:
        if head.startswith(_PNG):
            width, height = struct.unpack_from(">II", head, 16)
            return width, height
        if head.startswith(_GIF):
            width, height = struct.unpack_from("<HH", head, 6)
            return width, height
        if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
            return _webp_size(head)
        if head.startswith(b"\xff\xd8"):
            return _jpeg_size(head)
    except (struct.error, IndexError):
        pass
    return None


def _jpeg_size(head: bytes) -> tuple[int, int] | None:
    place = 2
    while head[place] == _MARKER:
        if head[place + 1] in _FRAMES:
            height, width = struct.unpack_from(">HH", head, place + 5)
            return width, height
        place += 2 + struct.unpack_from(">H", head, place + 2)[0]
    return None


def _webp_size(head: bytes) -> tuple[int, int] | None:
    match head[12:16]:
        case b"VP8 ":
            width, height = struct.unpack_from("<HH", head, 26)
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", head, 21)
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            low, high = head[24:27], head[27:30]
            return int.from_bytes(low, "little") + 1, int.from_bytes(high, "little") + 1
        case _:
            return None
