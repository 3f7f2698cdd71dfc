"""docs/performance.md, as the kept results of a card have it: `python -m benchmarks.gpu.report`."""

import json
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.models import EMBED, LARGE, SMALL

_ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parents[1] / "results-gpu.json"
RESULTS_OF_CARDS = RESULTS.with_name("results-gpus.json")
#: Written with `--results`.
RESULTS_OF_ANOTHER = RESULTS.with_name("results-gpu-h200.json")
PAGE = _ROOT / "docs/performance.md"
_NOT_MEASURED = "not measured"
#: The kinds of engines, by what the names of their measurements begin with.
_SIDES = {
    "Batchyard": "fleet, {model}",
    "vLLM's `AsyncLLM` alone": "bare engine, {model}, file",
    "`vllm run-batch`, engine warm": "bare engine, {model}, run_batch",
    "`vllm serve`, 4 API servers": "vllm serve with 4 servers, {model}",
    "Ray Data LLM": "Ray Data LLM, {model}",
}
#: Cases whose rows more than two sides ran.
_BESIDE = {
    ("large", "serve"): ("7B, 300 in, 128 out", LARGE),
    ("small",): ("0.5B, 100 in, 64 out", SMALL),
    ("front", "serve"): ("0.5B, 50 in, 4 out", SMALL),
    ("embeddings", "serve"): ("embeddings of 40 tokens", EMBED),
}
_MOST_CORES = 4
_HEAD = """# Performance on a card

`make bench-gpu` measures this on a machine with a GPU, and `make docs` writes this page from
`benchmarks/results-gpu.json` and the files like it beside it.

The fleet and vLLM's `AsyncLLM` alone, without a server, have the same arguments, and run the same
rows on the same card in turns; what stands here is the median of each side.
The bare engine is given tokens that were made before its time begins.
A batch's time is from its creation to its completion, without the upload of its file.
All models have the shapes of Qwen2.5 (with a vocabulary of 131,072) or of all-MiniLM-L6-v2, and
random weights: the work is the same, the texts mean nothing.
Other ways to run the same rows are measured by `python -m benchmarks.versus`, on any machine.
"""


def page(
    results: Mapping[str, Any] | None,
    of_cards: Mapping[str, Any] | None = None,
    of_another: Mapping[str, Any] | None = None,
) -> str:
    """The page; without results of one card it says that nothing was measured."""
    if results is None:
        return f"{_HEAD}\n## Results\n\nNothing has been measured yet.\n"
    parts = [_HEAD, "## Results\n", _machine(results), _table(results)]
    if of_another is not None:
        parts += ["## Another card\n", _machine(of_another), _table(of_another)]
    if of_cards is not None:
        parts += ["## Several cards\n", _machine(of_cards), _table(of_cards)]
    return "\n".join([*parts, _beside(results), _bounds(results)])


def kept(path: Path = RESULTS) -> Mapping[str, Any] | None:
    """What a file of results holds, if it is there."""
    if not path.is_file():
        return None
    found: Mapping[str, Any] = json.loads(path.read_text())
    return found


def _machine(results: Mapping[str, Any]) -> str:
    machine = results["machine"]
    day = time.strftime("%Y-%m-%d", time.gmtime(results["began_at"]))
    versions = ", ".join(f"{name} {machine[name]}" for name in ("vllm", "torch", "ray"))
    cards = machine.get("cards", 1)
    several = "" if cards == 1 else f"{cards} x "
    return (
        f"On {day}, on {several}{machine['card']} ({machine.get('memory_gib')} GiB, driver "
        f"{machine.get('driver')}) with {machine['processors']} processors: Python "
        f"{machine['python']}, {versions}.\n"
    )


def _table(results: Mapping[str, Any]) -> str:
    lines = ["| What | Batchyard | Beside | Ratio | Goal | Holds |", "|---|---|---|---|---|---|"]
    for name, case in results["cases"].items():
        lines += [_figure(figure) for figure in case["figures"]]
        if case["error"]:
            reason = case["error"].splitlines()[0].replace("|", "/")[:200]
            lines.append(f"| case `{name}` did not come to its end: {reason} | | | | | |")
    return "\n".join([*lines, ""])


def _figure(figure: Mapping[str, Any]) -> str:
    unit = f" {figure['unit']}".rstrip()
    beside = f"{_number(figure['baseline'])}{unit}" if figure["baseline"] else ""
    ratio = _number(figure["ratio"]) if figure["baseline"] else ""
    has_goal = figure["goal"] != "none"
    holds = ("yes" if figure["holds"] else "no") if has_goal else ""
    goal = figure["goal"] if has_goal else ""
    value = f"{_number(figure['value'])}{unit}"
    return f"| {figure['name']} | {value} | {beside} | {ratio} | {goal} | {holds} |"


def _beside(results: Mapping[str, Any]) -> str:
    lines = [
        "## Beside other ways to run the same rows\n",
        "Rows per second, on engines that are warm.\n",
        f"| Rows | {' | '.join(_SIDES)} |",
        f"|---|{'---|' * len(_SIDES)}",
    ]
    for cases, (title, model) in _BESIDE.items():
        rates = [_rate(results, cases, pattern.format(model=model)) for pattern in _SIDES.values()]
        lines.append(f"| {title} | {' | '.join(rates)} |")
    return "\n".join([*lines, ""])


def _rate(results: Mapping[str, Any], cases: tuple[str, ...], side: str) -> str:
    """The median of a side in the first of these cases that has it."""
    for case in cases:
        found = [
            one["rows_per_second"]
            for one in results["cases"].get(case, {}).get("measured", [])
            if one["side"] == side
        ]
        if found:
            return _number(statistics.median(found))
    return _NOT_MEASURED


def _bounds(results: Mapping[str, Any]) -> str:
    lines = [
        "## What bounds each\n",
        "How busy the card was, and the processes with the most processor time, in cores.\n",
        "| Case | Side | Card busy | Memory of the card | Cores |",
        "|---|---|---|---|---|",
        *_loads(results),
    ]
    return "\n".join([*lines, ""])


def _loads(results: Mapping[str, Any]) -> Iterator[str]:
    for name, case in results["cases"].items():
        # The last turn of each side, when nothing is cold.
        last = {one["side"]: one["load"] for one in case["measured"]}
        for side, load in last.items():
            busy, memory = load["gpu_percent"], load["gpu_gib"]
            cores = list(load["cores"].items())[:_MOST_CORES]
            yield " | ".join(
                [
                    f"| `{name}`",
                    side,
                    "" if busy is None else f"{busy:.0f} %",
                    "" if memory is None else f"{memory:.0f} GiB",
                    f"{', '.join(f'{kind} {count:.2f}' for kind, count in cores)} |",
                ]
            )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004  # three digits


if __name__ == "__main__":
    PAGE.write_text(page(kept(), kept(RESULTS_OF_CARDS), kept(RESULTS_OF_ANOTHER)))
