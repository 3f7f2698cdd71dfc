"""Run the whole suite in pytest processes, three at a time: some compute while others wait.

Prints last what failed: whoever keeps only the end of a long output must see it.

    python -m tests [--checked] [arguments for each]

One part holds what starts engines, two what speaks to whole fleets without engines (what breaks
them, and what they promise), one the dispatcher's with real servers, and one the rest, with
`--checked` less what `make check` runs. The next part begins when one has ended, the longest first.
Exits with the worst of their codes.
"""

import asyncio
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_TESTS = Path(__file__).parent
_ENGINES, _FAULTS, _DOORS, _OTHERS = "engines", "faults", "doors", "others"
_DISPATCHER = "dispatcher"
_PARTS = {
    _ENGINES: ("engine", "e2e"),
    _DISPATCHER: ("integration/dispatcher",),
    _FAULTS: ("faults", "chaos"),
    _DOORS: ("contract",),
}
_CHECKED = ("architecture", "unit")
_AT_A_TIME = 3
#: pytest's exit code for "no tests were collected": `-k` may name tests of one part alone.
_NONE_COLLECTED = 5
#: What is said again at the end: failures, and pytest's last line.
_OUTCOME = re.compile(r"(FAILED|ERROR) tests/|=+ .*\bin \d+\.\d+s\b")
#: Characters of a failure's line: assertions may print whole documents.
_OUTCOME_CHARACTERS = 600


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


async def _run(
    name: str, folders: Sequence[str], arguments: Sequence[str], outcome: list[str]
) -> int:
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
    )
    assert process.stdout is not None
    async for raw in process.stdout:
        line = raw.decode(errors="replace").rstrip()
        print(f"{name:10} | {line}", flush=True)
        if _OUTCOME.match(line):
            outcome.append(f"{name:10} | {line[:_OUTCOME_CHARACTERS]}")
    return await process.wait()


async def _main(arguments: Sequence[str]) -> int:
    # An interrupt reaches the parts too: wait until they have stopped what they started.
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)
    left_out = [f"tests/{folder}" for folder in _CHECKED if "--checked" in arguments]
    arguments = [argument for argument in arguments if argument != "--checked"]
    outcome: list[str] = []

    folders = {
        name: [folder for folder in all_ if folder not in left_out]
        for name, all_ in parts().items()
    }
    codes: dict[str, int] = {}

    waiting = iter((_ENGINES, _OTHERS, _DISPATCHER, _FAULTS, _DOORS))

    async def run() -> None:
        for name in waiting:
            codes[name] = await _run(name, folders[name], arguments, outcome)

    await asyncio.gather(*(run() for _ in range(_AT_A_TIME)))
    print("\n".join(["", "What failed, and how each part ended:", *sorted(outcome)]), flush=True)
    ran = [code for code in codes.values() if code != _NONE_COLLECTED]
    return max(ran, default=_NONE_COLLECTED)


if __name__ == "__main__":
    sys.exit(asyncio.run(_main(sys.argv[1:])))
