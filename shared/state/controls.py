"""What a client may change about a batch while it runs: pause, priority and metadata."""

from shared.errors import NotFoundError
from shared.lifecycle import Status
from shared.state.away import Away
from shared.state.scripts import Scripts


class Controls:
    """The noun `control` of State."""

    def __init__(self, scripts: Scripts, away: Away) -> None:
        self._scripts = scripts
        self._away = away

    async def pause(self, batch_id: str) -> Status | None:
        """Start no more slices of the batch.

        Returns the batch's status if it does not allow that. Raises NotFoundError.
        """
        return _blocking_status(batch_id, await self._run("pause", batch_id, 1))

    async def resume(self, batch_id: str) -> Status | None:
        """Undo `pause`.

        Returns the batch's status if it does not allow that. Raises NotFoundError.
        """
        return _blocking_status(batch_id, await self._run("pause", batch_id, 0))

    async def amend(
        self, batch_id: str, *, priority: int | None = None, metadata: str | None = None
    ) -> Status | None:
        """Change the priority, or the metadata (JSON; `null` removes it). None changes nothing.

        Returns the batch's status if its priority no longer matters. Raises NotFoundError.
        """
        new_priority = "" if priority is None else priority
        outcome = await self._run("amend", batch_id, new_priority, metadata or "")
        return _blocking_status(batch_id, outcome)

    async def _run(self, script: str, batch_id: str, *arguments: str | float) -> str:
        return await self._away.found(
            batch_id, lambda: self._scripts.run(script, batch_id, *arguments)
        )


def _blocking_status(batch_id: str, outcome: str) -> Status | None:
    match outcome:
        case "ok" | "repeat":
            return None
        case "missing":
            raise NotFoundError(f"No batch found with id '{batch_id}'.", param="id")
        case _:
            return Status(outcome)
