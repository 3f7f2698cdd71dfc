"""Pipelines as Redis knows them. S3 has all that cannot be made again."""

from collections.abc import Mapping
from typing import NamedTuple

from shared.errors import NotFoundError
from shared.state.client import Client
from shared.state.scripts import Scripts, pairs


class PipelineRecord(NamedTuple):
    """A pipeline's record, as text."""

    id: str
    fields: Mapping[str, str]

    @property
    def tenant(self) -> str:
        return self.fields["tenant"]

    @property
    def has_ended(self) -> bool:
        return "ended_at" in self.fields

    def number(self, field: str) -> int:
        """A time or a count; 0 if it was never set."""
        return int(self.fields.get(field, 0))


class Pipelines:
    """The noun `pipeline` of State."""

    def __init__(self, redis: Client, scripts: Scripts, namespace: str) -> None:
        self._redis = redis
        self._scripts = scripts
        self._namespace = namespace

    async def write(
        self,
        pipeline_id: str,
        tenant: str,
        created_at: int,
        fields: Mapping[str, str | int],
        *,
        ended_at: int | None = None,
        told: str = "",
    ) -> None:
        """Write these fields of the record. A pipeline that has ended stays so.

        In the same step, its end is announced on the bus and to webhooks: `told` is what the event
        says, as JSON. Raises TransientError during a rebuild.
        """
        end = "" if ended_at is None else ended_at
        await self._scripts.run(
            "write_pipeline", pipeline_id, tenant, created_at, end, told, *pairs(fields)
        )

    async def get(self, tenant: str, pipeline_id: str) -> PipelineRecord:
        """The tenant's pipeline. Raises NotFoundError, also for another tenant's."""
        found = await self.many([pipeline_id])
        if not found or found[0].tenant != tenant:
            raise NotFoundError(f"No pipeline found with id '{pipeline_id}'.", param="id")
        return found[0]

    async def many(self, pipeline_ids: list[str]) -> list[PipelineRecord]:
        """The records that exist, in the order asked for."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for pipeline_id in pipeline_ids:
                pipe.hgetall(f"{self._namespace}pipeline:{pipeline_id}")
            found = zip(pipeline_ids, await pipe.execute(), strict=True)
        return [PipelineRecord(*one) for one in found if one[1]]

    async def page(
        self, tenant: str, *, after: str | None, limit: int
    ) -> tuple[list[PipelineRecord], bool]:
        """A tenant's pipelines, newest first, after the cursor; and whether there are more.

        An unknown cursor gives an empty page.
        """
        key, first = f"{self._namespace}pipelines:{tenant}", 0
        if after is not None:
            rank = await self._redis.zrevrank(key, after)
            if rank is None:
                return [], False
            first = rank + 1
        found = await self._redis.zrevrange(key, first, first + limit)
        return await self.many(found[:limit]), len(found) > limit

    async def live(self, *, limit: int = 10_000) -> list[str]:
        """Ids of the pipelines that have not ended, the oldest first."""
        return await self._redis.zrange(f"{self._namespace}pipelines-live", 0, limit - 1)

    async def ended_before(self, seconds: float, *, limit: int = 100) -> list[str]:
        """Ids of pipelines that ended before this time (Unix seconds), earliest first."""
        return await self._redis.zrangebyscore(
            f"{self._namespace}pipelines-ended", "-inf", seconds, start=0, num=limit
        )

    async def forget(self, pipeline_id: str) -> None:
        """Remove every trace of the pipeline."""
        await self._scripts.run("forget_pipeline", pipeline_id)
