"""All lines, and a few of them by chance. Pure."""

import random
from collections.abc import Collection, Sequence

from tests.engine.compatibility import (
    body_lines,
    chat_lines,
    pooling_lines,
    text_lines,
    vision_lines,
)
from tests.engine.compatibility.line import SEER, Line

LINES: tuple[Line, ...] = (
    *chat_lines.LINES,
    *text_lines.LINES,
    *pooling_lines.LINES,
    *body_lines.LINES,
    *vision_lines.LINES,
)


def some(seed: int, always: Collection[str]) -> Sequence[Line]:
    """One line of each feature of an endpoint, and these by their ids; a seed chooses the same.

    None of the model that sees: its start would cost more than all of them.
    """
    groups: dict[tuple[str, str, str], list[Line]] = {}
    for line in LINES:
        if line.engine == SEER:
            continue
        groups.setdefault((line.engine, line.path, line.feature), []).append(line)
    chosen = {random.Random(seed).choice(group).id for group in groups.values()} | {*always}
    return [line for line in LINES if line.id in chosen]
