"""An engine that answers at once: replicas of Ray Serve without vLLM and without a queue."""

from collections.abc import AsyncGenerator, Sequence

from ray import serve

from benchmarks.stub_answers import answer_to
from shared.engines import ReplicaNumbers
from shared.ordering.work import Work
from worker.engine_definition import EVENLY
from worker.engine_deployment import start_serve
from worker.engine_errors import Results
from worker.engine_status import DEPLOYMENT, is_deployed

_OK = 200
_MAX_CALLS = 100_000


class StubReplica:
    """As `worker.engine.BatchServer`, as far as lanes call it."""

    def __init__(self, rows_per_message: int = 0) -> None:
        """With 0, all rows of a call are answered in one message."""
        self._rows = 0
        self._rows_per_message = rows_per_message

    async def run_lines(
        self, lines: Sequence[bytes], order: Sequence[Work]
    ) -> AsyncGenerator[Results, None]:
        """Answer all lines at once."""
        del order
        self._rows += len(lines)
        step = self._rows_per_message or len(lines)
        for first in range(0, len(lines), step):
            some = enumerate(lines[first : first + step], start=first)
            yield [(number, (_OK, answer_to(line), 0)) for number, line in some]

    async def withdraw(self, batch_id: str) -> None:
        """No row waits here."""

    async def complete(self, batch_id: str) -> None:
        """No row waits here."""

    async def expect(self, replicas: float) -> None:
        """There are always as many."""

    async def door(self) -> None:
        """There are no live calls."""

    async def numbers(self) -> ReplicaNumbers | None:
        """It counts none of them."""
        return None

    async def rows(self) -> int:
        """How many it has answered."""
        return self._rows


def deploy_stub(app_name: str, replicas: int, *, rows_per_message: int = 0) -> None:
    """Deploy it unless it is deployed, and return when all replicas run."""
    deploy_replicas(app_name, StubReplica, replicas, rows_per_message)


def deploy_replicas(app_name: str, replica: type, replicas: int, *arguments: int) -> None:
    """Deploy what takes an engine's place, with these arguments, unless it is deployed."""
    if not is_deployed(app_name):
        start_serve()
        run_replicas(app_name, replica, replicas, *arguments)


def run_replicas(app_name: str, replica: type, replicas: int, *arguments: int) -> None:
    """Have so many replicas of it, however many there are; returns when all run."""
    deployment = serve.deployment(
        name=DEPLOYMENT,
        num_replicas=replicas,
        max_ongoing_requests=_MAX_CALLS,
        request_router_config=EVENLY,
        ray_actor_options={"num_cpus": 0},
    )(replica)
    serve.run(deployment.bind(*arguments), name=app_name, route_prefix=None)
