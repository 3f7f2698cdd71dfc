"""The examples in README and docs that are marked `python run`: their texts by page and number."""

import re
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_EXAMPLE = re.compile(r"^```python run\n(.*?)^```", re.MULTILINE | re.DOTALL)


def examples() -> dict[str, str]:
    """Of all pages."""
    return {
        f"{page.name}-{number}": found[1]
        for page in (_ROOT / "README.md", *sorted((_ROOT / "docs").rglob("*.md")))
        for number, found in enumerate(_EXAMPLE.finditer(page.read_text()), start=1)
    }
