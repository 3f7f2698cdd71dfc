"""Small pictures drawn by code, as PNG: a shape of one colour on another."""

import struct
import zlib
from collections.abc import Callable, Iterator
from itertools import permutations

SIDE, SIZE = 96, 32
COLOURS = {
    "red": b"\xc8\x28\x28",
    "green": b"\x28\x96\x3c",
    "blue": b"\x28\x50\xc8",
    "yellow": b"\xf0\xc8\x1e",
}
#: Whether a point belongs to the shape, by its distances from the middle.
SHAPES: dict[str, Callable[[int, int], bool]] = {
    "circle": lambda x, y: x * x + y * y < SIZE * SIZE,
    "square": lambda x, y: max(abs(x), abs(y)) < SIZE,
    "cross": lambda x, y: min(abs(x), abs(y)) < SIZE // 4,
    "stripes": lambda _, y: y % SIZE < SIZE // 2,
}


def pictures() -> Iterator[tuple[str, bytes]]:
    """Each picture's name, which says what is on it, and its file."""
    for shape, is_inside in SHAPES.items():
        for colour, ground in permutations(COLOURS, 2):
            name = f"{colour} {shape} on {ground}.png"
            yield name, _png(is_inside, COLOURS[colour], COLOURS[ground])


def _png(is_inside: Callable[[int, int], bool], colour: bytes, ground: bytes) -> bytes:
    middle = SIDE // 2
    lines = bytearray()
    for y in range(SIDE):
        lines += b"\0"  # the line is stored as it is
        for x in range(SIDE):
            lines += colour if is_inside(x - middle, y - middle) else ground
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    pieces = ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, body) for kind, body in pieces)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
