"""The outsider of a run: a process that knows the fleet from its documents alone."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.chaos.checker import Violation
from tests.chaos.fleet import OUTSIDER, TENANTS, ChaosFleet
from tests.chaos.plan import GATEWAYS

_ROOT = Path(__file__).parents[2]


class AtWork:
    """An outsider, and what it says in the end."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.violations: list[Violation] = []
        self.counts: dict[str, int] = {}

    def hold(self) -> None:
        """Let it begin nothing until `go_on`."""
        self._tell(b"hold\n")

    def go_on(self) -> None:
        """Let it begin batches again."""
        self._tell(b"go on\n")

    def _tell(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line)

    async def verdict(self) -> None:
        """Let it begin nothing more, wait for the end of what it has begun, and hear it.

        The fleet must be whole.
        """
        said, _ = await self._process.communicate(b"")
        if not said:
            self.violations.append(Violation("outsider_silent", "the outsider", "see its log"))
            return
        found = json.loads(said)
        self.counts = {f"outsider's {name}": count for name, count in found["counts"].items()}
        self.violations += [Violation(f"outsider_{lie[0]}", *lie[1:]) for lie in found["lies"]]
        if not found["counts"]["ended"]:
            self.violations.append(Violation("did_not_bite", "the outsider", "no batch ended"))


@asynccontextmanager
async def an_outsider(fleet: ChaosFleet, *, seed: int) -> AsyncIterator[AtWork]:
    """An outsider who has begun; it is gone at the end. The fleet must be whole at first."""
    door = {
        "gateways": [fleet.url(fleet.link("clients", gateway)) for gateway in GATEWAYS],
        "amqp_url": fleet.amqp_url(OUTSIDER),
        "tenant": OUTSIDER,
        "key": await fleet.key(OUTSIDER),
        "strangers_key": await fleet.key(TENANTS[0]),
        "model": fleet.models[0],
        "seed": seed,
    }
    path = fleet.run_dir / "door.json"
    path.touch(0o600)
    path.write_text(json.dumps(door))
    with (fleet.run_dir / "outsider.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.outsider", str(path),
            cwd=_ROOT, stdin=PIPE, stdout=PIPE, stderr=log,
        )  # fmt: skip
    try:
        yield AtWork(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
