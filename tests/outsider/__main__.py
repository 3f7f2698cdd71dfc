"""`python -m tests.outsider DOOR.json`: at work until its input ends, and then the verdict.

The line `hold` on its input lets it begin no batch until the line `go on`.
Prints a JSON object with its `counts` and `lies`. Exit code 1 for any lie.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from tests.chaos.rows import answer, request
from tests.outsider.client import Door, Outsider
from tests.outsider.judge import lies

_AT_ONCE = 3


async def main(wanted: dict[str, Any]) -> int:
    """Work, and judge."""
    model, seed = wanted.pop("model"), wanted.pop("seed")
    outsider = Outsider(Door(**wanted), lambda key, row: request(key, row, model), seed=seed)
    async with outsider.at_work(_AT_ONCE):
        while line := await asyncio.to_thread(sys.stdin.readline):
            if line == "hold\n":
                outsider.may_begin.clear()
            else:
                outsider.may_begin.set()
    notes = outsider.notes
    found = lies(notes, answer)
    counts = {
        "batches": len(notes.batches),
        "rows": sum(len(seen.rows) for seen in notes.batches),
        "events": len(notes.events),
        "ended": sum(seen.end is not None for seen in notes.batches),
    }
    sys.stdout.write(json.dumps({"counts": counts, "lies": found}) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(json.loads(Path(sys.argv[1]).read_text()))))
