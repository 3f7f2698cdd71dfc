"""Run the whole suite in pytest processes, three at a time: some compute while others wait.

Prints last what failed: whoever keeps only the end of a long output must see it.

    python -m tests [--checked] [arguments for each]

Two parts hold what starts engines (alone, and in whole fleets), two what speaks to fleets without
engines (what breaks them, and what they promise), three the dispatcher, the gateway and the
operators' commands with real servers, and one the rest, with `--checked` less what `make check`
runs. The next part begins when one has ended, the longest first. Exits with the worst of their
codes, and with 1 where a signal ended one. Each part has a session of its own, as servers have: the
kernel divides the processors between sessions, and parts in one would share what a server has.
"""

import asyncio
import os
import re
import signal
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_TESTS = Path(__file__).parent
_ENGINES, _FLEETS, _FAULTS, _DOORS, _OTHERS = "engines", "fleets", "faults", "doors", "others"
_DISPATCHER, _GATEWAY, _COMMANDS = "dispatcher", "gateway", "commands"
#: In the order in which they begin.
_PARTS: Mapping[str, Sequence[str]] = {
    _ENGINES: ("engine",),
    _FLEETS: ("e2e",),
    # All that no other part names.
    _OTHERS: (),
    _FAULTS: ("faults", "chaos"),
    _DISPATCHER: ("integration/dispatcher",),
    _COMMANDS: ("integration/cli",),
    _DOORS: ("contract",),
    _GATEWAY: ("integration/gateway",),
}
_CHECKED = ("architecture", "unit")
_AT_A_TIME = 3
#: pytest's exit code for "no tests were collected": `-k` may name tests of one part alone.
_NONE_COLLECTED = 5
#: Those that pytest's last line tells: all passed, some failed, none collected.
_PLAIN_CODES = (0, 1, _NONE_COLLECTED)
#: What is said again at the end: failures, and pytest's last line.
_OUTCOME = re.compile(r"(FAILED|ERROR) tests/|=+ .*\bin \d+\.\d+s\b")
#: How a line of the traceback of pytest itself begins, which then runs no more tests.
_INTERNAL = "INTERNALERROR> "
_INTERNAL_LINES = 12
#: Characters of a failure's line: assertions may print whole documents.
_OUTCOME_CHARACTERS = 600
#: The parts' process groups.
_running: set[int] = set()


def parts() -> Mapping[str, Sequence[str]]:
    """The folders of each part, and what a part leaves to another one."""
    folders = {path.name for path in _TESTS.iterdir() if any(path.rglob("test_*.py"))}
    named = {name for names in _PARTS.values() for name in names}
    found = {
        name: [f"tests/{folder}" for folder in sorted(of_part)]
        for name, of_part in {**_PARTS, _OTHERS: folders - named}.items()
    }
    found[_OTHERS] += [f"--ignore=tests/{name}" for name in sorted(named) if "/" in name]
    return found


async def run_part(
    name: str, folders: Sequence[str], arguments: Sequence[str], outcome: list[str]
) -> int:
    """The exit code of one part; what must be said again at the end is added to `outcome`."""
    # Both parts would write to one cache.
    own = ("-o", f"cache_dir=.pytest_cache/{name}")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "pytest",
        *own,
        *arguments,
        *folders,
        cwd=_TESTS.parent,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        # A line of a failure report may be long.
        limit=2**24,
        start_new_session=True,
    )
    assert process.stdout is not None
    _running.add(process.pid)
    internal: deque[str] = deque(maxlen=_INTERNAL_LINES)
    found: list[str] = []
    async for raw in process.stdout:
        line = raw.decode(errors="replace").rstrip()
        print(f"{name:10} | {line}", flush=True)
        if _OUTCOME.match(line):
            found.append(line)
        elif line.startswith(_INTERNAL):
            internal.append(line)
    code = await process.wait()
    _running.discard(process.pid)
    if code not in _PLAIN_CODES:
        found.append(f"exit code {code}")
    outcome += (f"{name:10} | {line[:_OUTCOME_CHARACTERS]}" for line in (*internal, *found))
    return code


def interrupt_parts() -> None:
    """Interrupt those that run, as a terminal would if they were in its session."""
    for group in _running:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGINT)


async def _main(arguments: Sequence[str]) -> int:
    left_out = [f"tests/{folder}" for folder in _CHECKED if "--checked" in arguments]
    arguments = [argument for argument in arguments if argument != "--checked"]
    outcome: list[str] = []

    folders = {
        name: [folder for folder in all_ if folder not in left_out]
        for name, all_ in parts().items()
    }
    codes: dict[str, int] = {}
    waiting = deque(folders)

    def interrupt() -> None:
        # No other part begins, and those that run stop what they have started.
        waiting.clear()
        interrupt_parts()

    for one in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(one, interrupt)

    async def run() -> None:
        while waiting:
            name = waiting.popleft()
            codes[name] = await run_part(name, folders[name], arguments, outcome)

    await asyncio.gather(*(run() for _ in range(_AT_A_TIME)))
    print("\n".join(["", "What failed, and how each part ended:", *outcome]), flush=True)
    return worst(codes.values())


def worst(codes: Iterable[int]) -> int:
    """The exit code of a run whose parts ended with these; negative is a signal's number."""
    ran = [code if code >= 0 else 1 for code in codes if code != _NONE_COLLECTED]
    return max(ran, default=_NONE_COLLECTED)


if __name__ == "__main__":
    sys.exit(asyncio.run(_main(sys.argv[1:])))
