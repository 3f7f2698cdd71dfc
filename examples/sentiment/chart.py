"""Stacked bars as SVG, which needs no library."""

from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

COLOURS = {"positive": "#2e7d5b", "neutral": "#b8b8b8", "negative": "#c0504d"}
HEIGHT, LABEL, WIDTH = 32, 110, 400


def chart(rows: Sequence[Mapping[str, Any]], *, key: str) -> str:
    """A bar for each row, named by `key`, with the shares of its numbers."""
    drawn = [text for place, row in enumerate(rows) for text in _bar(row, key, place * HEIGHT)]
    below = HEIGHT * len(rows) + 22
    legend = [
        f'<text x="{LABEL + 130 * place}" y="{below}" fill="{colour}">{name}</text>'
        for place, (name, colour) in enumerate(COLOURS.items())
    ]
    size = f'width="{LABEL + WIDTH + 60}" height="{HEIGHT * (len(rows) + 1)}"'
    style = 'font-family="sans-serif" font-size="14"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>'
    return "\n".join([head, *drawn, *legend, "</svg>\n"])


def _bar(row: Mapping[str, Any], key: str, top: int) -> list[str]:
    total = sum(row.get(name, 0) for name in COLOURS)
    drawn = [f'<text x="0" y="{top + 20}">{escape(str(row[key]))}</text>']
    left = float(LABEL)
    for name, colour in COLOURS.items():
        width = WIDTH * row.get(name, 0) / total
        drawn.append(
            f'<rect x="{left:.1f}" y="{top + 4}" width="{width:.1f}" height="24" fill="{colour}"/>'
        )
        left += width
    return [*drawn, f'<text x="{left + 8:.0f}" y="{top + 20}">{total}</text>']
