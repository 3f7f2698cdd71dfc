"""Run the whole suite in two pytest processes side by side: one computes while the other waits.

    python -m tests [arguments for both]

The first half holds what starts engines, the second the rest. Exits with the worse of both codes.
"""

import asyncio
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_TESTS = Path(__file__).parent
_ENGINES = ("engine", "e2e")
#: pytest's exit code for "no tests were collected": `-k` may name tests of one half alone.
_NONE_COLLECTED = 5


def halves() -> Mapping[str, Sequence[str]]:
    """The folders of each half."""
    folders = sorted(path.name for path in _TESTS.iterdir() if any(path.rglob("test_*.py")))
    return {
        "engines": [f"tests/{name}" for name in _ENGINES],
        "others": [f"tests/{name}" for name in folders if name not in _ENGINES],
    }


async def _run(name: str, folders: Sequence[str], arguments: Sequence[str]) -> int:
    # One cache would be written by both.
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
        # A line of a failure's report may be long.
        limit=2**24,
    )
    assert process.stdout is not None
    async for line in process.stdout:
        print(f"{name:7} | {line.decode(errors='replace').rstrip()}", flush=True)
    return await process.wait()


async def _main(arguments: Sequence[str]) -> int:
    # An interrupt reaches both halves too: they stop what they started, and are waited for.
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)
    codes = await asyncio.gather(
        *(_run(name, folders, arguments) for name, folders in halves().items())
    )
    ran = [code for code in codes if code != _NONE_COLLECTED]
    return max(ran, default=_NONE_COLLECTED)


if __name__ == "__main__":
    sys.exit(asyncio.run(_main(sys.argv[1:])))
