"""How long each stage of a replica's start takes, by its own clock and by what vLLM writes.

Imports nothing heavy: the clock runs before Ray's LLM library and vLLM are imported.
"""

import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from shared.engine_starts import Start

#: vLLM's core and its workers write these lines, and say it nowhere else.
_MODEL = r"Model loading took .*?([\d.]+) s(?:econds)?\b"
#: On processors there is only this one.
_WEIGHTS = r"Loading weights took ([\d.]+) s(?:econds)?\b"
_GRAPHS = r"Graph capturing finished in ([\d.]+) secs"
_READY = r"init engine \(profile, create kv cache, warmup model\) took ([\d.]+) s"
_COMPILED = _READY + r" \(compilation: ([\d.]+) s"


class StageClock:
    """Belongs to one replica, from the first line that runs in it."""

    def __init__(self) -> None:
        """The first stage begins where the process did."""
        self._seconds: dict[str, float] = {}
        self._since = time.monotonic() - _age()
        self._first_row_seconds: float | None = None

    @property
    def start(self) -> Start:
        """What is known until now."""
        # It is told again and again, and nobody needs more of it.
        return Start(
            {stage: round(seconds, 2) for stage, seconds in self._seconds.items()},
            self._first_row_seconds,
        )

    def end(self, stage: str) -> None:
        """What has passed since another stage ended was this one."""
        now = time.monotonic()
        self._seconds[stage] = self._seconds.get(stage, 0.0) + now - self._since
        self._since = now

    def divide_core(self, text: str) -> None:
        """Take out of the stage `core` what vLLM has written of it."""
        self._seconds.update(core_stages(self._seconds["core"], text))

    def note_row(self, began_at: float) -> None:
        """A row that came at this time (`time.monotonic`) has its answer."""
        if self._first_row_seconds is None:
            self._first_row_seconds = time.monotonic() - began_at


def core_stages(seconds: float, text: str) -> Mapping[str, float]:
    """The stages of a core that was ready after so many seconds, and has written the text.

    They sum up to `seconds`; `core` is what is left: its process, and its imports. Of several cores
    or workers, which work at the same time, the slowest counts.
    """
    model, ready = _longest(_MODEL, text), _longest(_READY, text)
    compiled, captured = _longest(_COMPILED, text, group=2), _longest(_GRAPHS, text)
    found = {
        "weights": _longest(_WEIGHTS, text) if model is None else model,
        "compile": compiled,
        "graphs": captured,
        "profile": None
        if ready is None
        else max(0.0, ready - (compiled or 0.0) - (captured or 0.0)),
    }
    stages, left = {}, seconds
    for stage, taken in found.items():
        if taken is not None:
            stages[stage] = min(taken, left)
            left -= stages[stage]
    return {"core": left, **stages}


def written_here() -> Iterator[str]:
    """What this process and its children have written, as far as it went into files."""
    for output in (1, 2):
        path = Path(f"/proc/self/fd/{output}")
        try:
            # Nobody may ever write into a pipe.
            if stat.S_ISREG(os.fstat(output).st_mode):
                yield path.read_text(errors="replace")
        except OSError:
            continue


def _age() -> float:
    """Seconds since this process was made."""
    # In Unix seconds, as psutil has it, the kernel tells it to a second only.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    made_at = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - made_at)


def _longest(pattern: str, text: str, *, group: int = 1) -> float | None:
    """None if there is no such line."""
    return max((float(found[group]) for found in re.finditer(pattern, text)), default=None)
