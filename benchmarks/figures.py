"""Figures, and the table that shows them."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """One measurement and its baseline; `goal` limits the ratio (or the value)."""

    name: str
    value: float
    baseline: float
    ratio: float
    unit: str
    goal: str
    holds: bool


def compared(
    name: str,
    value: float,
    baseline: float,
    *,
    unit: str,
    goal: float,
    sense: Literal["at least", "at most"],
) -> Figure:
    """A figure whose ratio to its baseline has a goal."""
    ratio = value / baseline
    holds = ratio >= goal if sense == "at least" else ratio <= goal
    return Figure(name, value, baseline, ratio, unit, f"ratio {sense} {goal:g}", holds)


def bounded(name: str, value: float, baseline: float, *, unit: str, goal: float | None) -> Figure:
    """A figure whose value must not exceed its goal; None for one that is only reported."""
    ratio = value / baseline if baseline else 0.0
    text = "none" if goal is None else f"value at most {goal:g}"
    return Figure(name, value, baseline, ratio, unit, text, goal is None or value <= goal)


def publish(figures: list[Figure], path: Path) -> None:
    """Print the table, and write the figures to `path`."""
    table = Table("figure", "value", "baseline", "ratio", "unit", "goal", "holds")
    for figure in figures:
        table.add_row(
            figure.name,
            f"{figure.value:.4g}",
            f"{figure.baseline:.4g}",
            f"{figure.ratio:.3g}",
            figure.unit,
            figure.goal,
            "yes" if figure.holds else "NO",
        )
    Console(width=140).print(table)
    path.write_text(json.dumps([asdict(figure) for figure in figures], indent=2) + "\n")
