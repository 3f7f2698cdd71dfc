"""images.py [FOLDER] [--model NAME]: describe a folder's PNG and JPEG files, or drawn pictures."""

import argparse
import base64
import os
from collections.abc import Iterator
from pathlib import Path

from drawing import pictures

import batchyard

TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}
ASK = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "Describe this picture in at most ten words."},
            {"type": "image_url", "image_url": {"url": "{{ image }}"}},
        ],
    }
]


def found(folder: Path | None) -> Iterator[tuple[str, bytes]]:
    """The name and the bytes of each picture."""
    if folder is None:
        yield from pictures()
        return
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in TYPES:
            yield path.name, path.read_bytes()


def row(name: str, content: bytes) -> dict[str, str]:
    """The picture inside the row, as a `data:` URL."""
    kind = TYPES[Path(name).suffix.lower()]
    return {"name": name, "image": f"data:{kind};base64,{base64.b64encode(content).decode()}"}


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder", nargs="?", type=Path)
parser.add_argument("--model", default=os.environ.get("VISION_MODEL", "tiny-vision"))
given = parser.parse_args()
described = batchyard.run(
    [row(*picture) for picture in found(given.folder)],
    ASK,
    model=given.model,
    body={"max_tokens": 30, "temperature": 0},
)
for picture in described:
    print(f"{picture['name']:24} {picture['answer'] or picture['error']}")
