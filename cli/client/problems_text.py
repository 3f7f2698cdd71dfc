"""The problems of an input, for a reader. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

_MAX_SHOWN = 20


def problem_lines(problems: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each of the first problems, and the number of the others."""
    lines = [_line(problem) for problem in problems[:_MAX_SHOWN]]
    if len(problems) > _MAX_SHOWN:
        lines.append(f"and {len(problems) - _MAX_SHOWN:,} more; --json shows all")
    return lines


def warning_lines(warnings: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each warning."""
    return [f"warning: {warning['message']}" for warning in warnings]


def _line(problem: Mapping[str, Any]) -> str:
    place = f"line {problem['line']}: " if problem["line"] else ""
    param = f" ({problem['param']})" if problem.get("param") else ""
    return f"{place}{problem['message']}{param}"
