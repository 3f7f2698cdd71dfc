"""How long each stage of a replica's start takes, by its own clock and by what vLLM writes.

Imports nothing heavy: the clock runs before Ray's LLM library and vLLM are imported.
"""

import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from shared.engine_starts import Start

#: How much of a log is read: an engine that dies may have written for weeks.
_MOST_BYTES = 4 * 1024 * 1024
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
        self._start: Start | None = None
        self._restarts = 0
        #: Whether the core that runs has answered any row.
        self.has_answered = False
        #: How many bytes this process and its children had written before, by output.
        self._written: dict[int, int] = {}

    @property
    def start(self) -> Start:
        """What is known until now."""
        # It is told again and again, and nobody needs more of it.
        stages = {stage: round(seconds, 2) for stage, seconds in self._seconds.items()}
        if self._start is None:
            return Start(stages, self._first_row_seconds)
        return msgspec.structs.replace(
            self._start, restarts=self._restarts, last_restart_stages=stages
        )

    def begin_again(self) -> None:
        """The core has died, and another one starts: the stages to come are that one's."""
        self._start = self._start or self.start
        self._seconds = {}
        self._restarts += 1
        self._since = time.monotonic()
        self.has_answered = False
        self._written = {output: os.fstat(output).st_size for output in _files()}

    def end(self, stage: str) -> None:
        """What has passed since another stage ended was this one."""
        now = time.monotonic()
        self._seconds[stage] = self._seconds.get(stage, 0.0) + now - self._since
        self._since = now

    def divide_core(self) -> None:
        """Take out of the stage `core` what vLLM has written of it."""
        self._seconds.update(core_stages(self._seconds["core"], "\n".join(self.written())))

    def written(self) -> Iterator[str]:
        """What this process and its children have written of this start, as far as into files.

        Of much, the end.
        """
        for output in _files():
            with suppress(OSError):
                yield _end_of(Path(f"/proc/self/fd/{output}"), self._written.get(output, 0))

    def note_row(self, began_at: float) -> None:
        """A row that came at this time (`time.monotonic`) has its answer."""
        self.has_answered = True
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


def _files() -> Iterator[int]:
    """Those of the outputs that are files."""
    for output in (1, 2):
        with suppress(OSError):
            # Nobody may ever write into a pipe.
            if stat.S_ISREG(os.fstat(output).st_mode):
                yield output


def _end_of(path: Path, begin: int) -> str:
    """What the file says behind so many bytes; all of it if it has become shorter."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(begin if begin <= size else 0, size - _MOST_BYTES))
        return file.read(_MOST_BYTES).decode(errors="replace")


def _age() -> float:
    """Seconds since this process was made."""
    # In Unix seconds, as psutil has it, the kernel tells it to a second only.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    made_at = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - made_at)


def _longest(pattern: str, text: str, *, group: int = 1) -> float | None:
    """None if there is no such line."""
    return max((float(found[group]) for found in re.finditer(pattern, text)), default=None)
