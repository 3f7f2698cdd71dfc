"""The doors of a lane's engines, where gateways hand on live calls; nothing of it is on disk."""

from collections.abc import Iterable

from shared.doors import Door, decode, encode
from shared.state.client import Client
from shared.state.scripts import Scripts

#: How long after a live call its lane has a job. Gateways say again sooner that there are calls.
WANTED_SECONDS = 60.0
#: How long doors are known that no lane job has shown again.
_KNOWN_SECONDS = 30.0


class Doors:
    """The noun `door` of State."""

    def __init__(self, redis: Client, scripts: Scripts, namespace: str) -> None:
        self._redis = redis
        self._scripts = scripts
        self._namespace = namespace

    async def want(self, lane: str) -> None:
        """Say that there are live calls for the lane: it gets a job, and thereby an engine."""
        await self._scripts.run("want_engine", lane, int(WANTED_SECONDS * 1000))

    async def are_wanted(self, lane: str) -> bool:
        """Whether there were live calls for the lane of late."""
        return bool(await self._redis.exists(f"{self._namespace}lane:{lane}:wanted"))

    async def show(self, lane: str, job: str, doors: Iterable[Door]) -> bool:
        """Let gateways know the doors, if the lane's job is still this one.

        Returns whether there were live calls for the lane of late.
        """
        milliseconds = int(_KNOWN_SECONDS * 1000)
        text = encode(doors)
        return bool(await self._scripts.run("show_doors", lane, job, text, milliseconds))

    async def of(self, lane: str) -> list[Door]:
        """The doors that the lane's job has shown of late."""
        text = await self._redis.get(f"{self._namespace}lane:{lane}:doors")
        return [] if text is None else decode(text)
