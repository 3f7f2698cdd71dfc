"""What the ways of benchmarks/versus.py took, as JSON and as the tables of examples/versus."""

import json
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

SYNC, RAY_DATA, RUN_BATCH, BATCHYARD = "LLM.generate", "Ray Data LLM", "vllm run-batch", "Batchyard"
RESULTS = Path(__file__).parent / "results-versus.json"
_SCRIPT = "a script with `LLM` for each batch"
_LOADED = "`LLM.generate`, loaded once"
#: Of seconds.
_DIGITS = 3
_AIM_SYNC, _AIM_RAY, _AIM_SMALL = 2, 1, 10


class Case(NamedTuple):
    """So many batches of so many rows."""

    batches: int
    rows: int

    def text(self) -> str:
        """As it is printed."""
        return f"{self.batches} x {self.rows}"


class Times(NamedTuple):
    """Seconds for all batches of a case, and how many of them were run."""

    #: Until the first batch can begin. Batchyard's is the first row of a fleet without engines.
    start: float
    work: float
    measured: int
    #: How long a second of one core took by the clock when it began: 1 on a machine that is free.
    clock: float


@dataclass
class Comparison:
    """The times of all cases and ways, in the order of their measurement."""

    tokens: int
    cores: int
    times: list[dict[str, Any]] = field(default_factory=list)

    def add(self, case: Case, found: Mapping[str, Times]) -> None:
        """One turn of a case."""
        self.times += [
            {"batches": case.batches, "rows": case.rows, "way": way, **one._asdict()}
            for way, one in found.items()
        ]

    def cases(self) -> list[Case]:
        """Each once, the smallest first."""
        return sorted({Case(one["batches"], one["rows"]) for one in self.times})

    def of(self, case: Case) -> dict[str, float]:
        """The median seconds of each line of the table."""
        start, work = self._medians(case, "start"), self._medians(case, "work")
        return {
            BATCHYARD: work[BATCHYARD],
            _LOADED: work[SYNC],
            _SCRIPT: case.batches * start[SYNC] + work[SYNC],
            RAY_DATA: work[RAY_DATA],
            f"`{RUN_BATCH}`": work[RUN_BATCH],
        }

    def turns(self) -> int:
        """How often each way was measured, at least."""
        return min((len(self._of(case, BATCHYARD)) for case in self.cases()), default=0)

    def _of(self, case: Case, way: str) -> list[dict[str, Any]]:
        wanted = (*case, way)
        return [one for one in self.times if (one["batches"], one["rows"], one["way"]) == wanted]

    def _medians(self, case: Case, name: str) -> dict[str, float]:
        return {
            way: statistics.median(one[name] for one in self._of(case, way))
            for way in (BATCHYARD, SYNC, RAY_DATA, RUN_BATCH)
        }


def published(path: Path = RESULTS) -> Comparison:
    """What was measured so far."""
    return Comparison(**json.loads(path.read_text()))


def publish(comparison: Comparison, path: Path = RESULTS) -> None:
    """Write what was measured so far."""
    path.write_text(json.dumps(asdict(comparison), indent=1) + "\n")


def tables(comparison: Comparison) -> str:
    """The times in seconds with what they are to Batchyard's, and which aims they meet."""
    cases = comparison.cases()
    first = comparison.of(cases[0])
    rows = [["Batches x rows", *first], ["---", *["--:"] * len(first)]]
    rows += [[case.text(), *map(" ".join, _cells(comparison.of(case)))] for case in cases]
    aims = [["Aim", "Measured", "Met"], ["---"] * 3, *_aims(comparison)]
    clocks = sorted(one["clock"] for one in comparison.times)
    cold = statistics.median(one["start"] for one in comparison.times if one["way"] == BATCHYARD)
    return (
        f"{_table(rows)}\n\n{_table(aims)}\n\n"
        f"{comparison.cores} cores, answers of {comparison.tokens} tokens, medians of "
        f"{comparison.turns()} turns; {BATCHYARD} on a warm engine, which took {cold:.0f} s to "
        f"start with the fleet's first row. A second of one core took "
        f"{clocks[0]:.1f} to {clocks[-1]:.1f} s by the clock (median "
        f"{statistics.median(clocks):.1f}): other programs used the machine."
    )


def _cells(seconds: Mapping[str, float]) -> Iterator[tuple[str, ...]]:
    own = seconds[BATCHYARD]
    for line, one in seconds.items():
        text = f"{one:,.{_DIGITS}g} s" if one < 10**_DIGITS else f"{one:,.0f} s"
        yield (text,) if line == BATCHYARD else (text, f"({one / own:.2g} x)")


def _aims(comparison: Comparison) -> Iterator[list[str]]:
    ratios = {
        case: {line: one / found[BATCHYARD] for line, one in found.items()}
        for case in comparison.cases()
        for found in [comparison.of(case)]
    }
    for line in (_SCRIPT, _LOADED):
        per_case = {case: one[line] for case, one in ratios.items()}
        yield _aim(f"{_AIM_SYNC} x as fast as {line}", per_case, _AIM_SYNC)
    per_case = {case: one[RAY_DATA] for case, one in ratios.items()}
    yield _aim(f"as fast as {RAY_DATA} in every size", per_case, _AIM_RAY)
    small = {case: one for case, one in ratios.items() if case.batches > 1}
    for line in (_SCRIPT, _LOADED, RAY_DATA, f"`{RUN_BATCH}`"):
        per_case = {case: one[line] for case, one in small.items()}
        yield _aim(f"many small batches: {_AIM_SMALL} x as fast as {line}", per_case, _AIM_SMALL)


def _aim(name: str, ratios: Mapping[Case, float], least: float) -> list[str]:
    texts = [f"{case.text()}: {one:.2g} x" for case, one in ratios.items()]
    met = [case.text() for case, one in ratios.items() if one >= least]
    if len(met) == len(ratios):
        return [name, ", ".join(texts), "yes"]
    return [name, ", ".join(texts), f"only {', '.join(met)}" if met else "no"]


def _table(rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
