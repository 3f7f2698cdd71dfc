"""What docs/engine-compatibility.md says of the outcomes of the lines. Pure."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.engine.compatibility.comparison import (
    ENDS,
    NOWHERE,
    OTHERWISE,
    SAME,
    Outcome,
)
from tests.engine.compatibility.differences import DIFFERENCES
from tests.engine.compatibility.line import Line
from tests.engine.compatibility.lines import LINES

#: What the last whole run found, by the line's id.
OUTCOMES = Path(__file__).with_name("outcomes.json")
_RUN_BATCH: Mapping[str, str] = {
    SAME: "same",
    NOWHERE: "no such endpoint",
    ENDS: "ends the whole run",
    OTHERWISE: "another answer",
}


def read_outcomes() -> dict[str, Outcome]:
    """What the last whole run found."""
    return {name: Outcome(*found) for name, found in json.loads(OUTCOMES.read_text()).items()}


def outcomes_text(outcomes: Mapping[str, Outcome]) -> str:
    """The text of that file: one line of text for each line."""
    lines = [f"  {json.dumps(line.id)}: {json.dumps(outcomes[line.id])}" for line in LINES]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def summary(outcomes: Mapping[str, Outcome]) -> str:
    """How many lines there are, and how many have the same answer each way."""
    found = outcomes.values()
    same = sum(one.here == SAME for one in found)
    run_batch = Counter(one.run_batch for one in found)
    return (
        f"Of {len(found)} lines, {same} have the status and the body of `vllm serve` here, and "
        f"{len(found) - same} differ in one of the ways [below](#what-is-meant-to-differ).\n"
        f"`vllm run-batch` gives {run_batch[SAME]} of them that answer, too, {run_batch[ENDS]} "
        f"end its whole run, and it has no such endpoint for {run_batch[NOWHERE]}."
    )


def table(outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    """The rows of the table: one for each endpoint and feature."""
    yield "| Endpoint | Feature | Lines | `vllm serve` | `vllm run-batch` | Here |"
    yield "|---|---|---|---|---|---|"
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in LINES:
        groups.setdefault((line.path, line.feature), []).append(line)
    for (path, feature), lines in sorted(groups.items(), key=_place):
        found = [outcomes[line.id] for line in lines]
        yield (
            f"| `{path}` | {feature} | {len(found)} | {_counted(str(one.serve) for one in found)} "
            f"| {_counted(_RUN_BATCH.get(one.run_batch, one.run_batch) for one in found)} "
            f"| {_counted(_here(one) for one in found)} |"
        )


def differences(outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    """The rows of the table of what is meant to differ."""
    yield "| Difference | Lines | Why |"
    yield "|---|---|---|"
    counts = Counter(one.here for one in outcomes.values())
    for name, one in DIFFERENCES.items():
        yield f"| {name} | {counts[name]} | {one.reason} |"


def _here(one: Outcome) -> str:
    return f"{one.here}, fail the batch (`{one.fails}`)" if one.fails else one.here


def _counted(values: Iterator[str]) -> str:
    counts = Counter(values)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{count} x {value}" for value, count in counts.most_common())


def _place(group: tuple[tuple[str, str], Sequence[Line]]) -> tuple[int, int]:
    """Endpoints in the order of their first lines, and so their features."""
    (path, _), lines = group
    paths = list(dict.fromkeys(line.path for line in LINES))
    return paths.index(path), LINES.index(lines[0])
