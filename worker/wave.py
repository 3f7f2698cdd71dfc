"""A wave: one Ray Data execution that runs slices of any batches of its lane.

Its source yields one block a slice, its client sends chunks of lines to the engine, its sink
commits. Lines and results cross it as opaque bytes: Arrow damages dicts, `read_text` splits JSON.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, TypeVar

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import ray.data
from ray.data import ActorPoolStrategy, DataContext, Datasource, ReadTask
from ray.data.block import Block, BlockAccessor, BlockMetadata
from ray.data.datasource import Datasink

from shared.slices import Claim, SliceUsage
from shared.state import State
from shared.storage import Storage
from worker.connections import open_state, open_storage, read_settings
from worker.engine_client import EngineClient
from worker.rows import PartBody
from worker.slice_run import (
    BatchWatch,
    Outcome,
    SliceResult,
    SliceRunner,
    fetch,
    settle,
)

T = TypeVar("T")
_claims = msgspec.json.Decoder(Claim)
#: Rows of Arrow are slices: what each column holds.
Batch = dict[str, Any]
#: Light processes that wait for others need no core of their own.
_LIGHT = 0.1
#: Reading and committing processes of one wave.
_HELPERS = 2


def prepare_ray_data() -> None:
    """Settings of every execution in this process."""
    context = DataContext.get_current()
    # A cold engine may need longer than Ray Data's patience; dead ones are noticed by claims.
    context.execution_no_progress_timeout_s = -1
    context.enable_progress_bars = False
    context.print_on_execution_start = False


def run_wave(claims: list[Claim], *, app_name: str, rows_in_engine: int) -> None:
    """Run the slices to their commits; blocks until the last one. Meant for a thread of its own."""
    slices_at_once = max(2, 1 + rows_in_engine // max(1, claims[0].slice.rows))
    ray.data.read_datasource(
        SliceSource(claims),
        override_num_blocks=len(claims),
        concurrency=_HELPERS,
        num_cpus=_LIGHT,
    ).map_batches(
        SliceMapper,
        # A slice is a block, and a block is what is retried.
        batch_size=None,
        num_cpus=_LIGHT,
        max_concurrency=slices_at_once,
        compute=ActorPoolStrategy(size=1),
        fn_constructor_kwargs={"app_name": app_name, "rows_in_engine": rows_in_engine},
    ).write_datasink(PartSink(), concurrency=_HELPERS, ray_remote_args={"num_cpus": _LIGHT})


class SliceSource(Datasource):
    """One read task, and so one block, a slice."""

    def __init__(self, claims: list[Claim]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # ray is half typed
        self._claims = claims

    def estimate_inmemory_data_size(self) -> int | None:
        return sum(claim.slice.end - claim.slice.start for claim in self._claims)

    def get_read_tasks(
        self,
        parallelism: int,  # noqa: ARG002  # Ray's signature, as the next two
        per_task_row_limit: int | None = None,  # noqa: ARG002
        data_context: DataContext | None = None,  # noqa: ARG002
    ) -> list[ReadTask]:
        return [_read_task(claim) for claim in self._claims]


def _read_task(claim: Claim) -> ReadTask:
    def read() -> Iterable[Block]:
        async def get(_: State, storage: Storage) -> bytes | None:
            return await fetch(storage, claim)

        yield pa.table(
            {
                "claim": pa.array([msgspec.json.encode(claim)], pa.binary()),
                "lines": pa.array([_with_stores(get)], pa.binary()),
            }
        )

    size = claim.slice.end - claim.slice.start
    return ReadTask(
        read,
        BlockMetadata(num_rows=1, size_bytes=size, input_files=None, exec_stats=None),
    )


class SliceMapper:
    """The engine client of a wave: an async actor with several slices in flight."""

    def __init__(self, app_name: str, rows_in_engine: int) -> None:
        settings = read_settings()
        self._runner = SliceRunner(
            EngineClient(app_name, rows_per_engine_call=settings.rows_per_engine_call),
            BatchWatch(open_state(settings)),
            rows_in_engine=rows_in_engine,
            rows_per_engine_call=settings.rows_per_engine_call,
        )

    async def __call__(self, batch: Batch) -> AsyncIterator[Batch]:
        for text, lines in zip(batch["claim"], batch["lines"], strict=True):
            result = await self._runner.run(
                _claims.decode(bytes(text)), lines if lines is None else bytes(lines)
            )
            yield {
                "claim": pa.array([bytes(text)], pa.binary()),
                "outcome": [result.outcome.value],
                "reason": [result.reason],
                "output": pa.array([result.body.output], pa.binary()),
                "error": pa.array([result.body.error], pa.binary()),
                "usage": [json.dumps(result.body.usage)],
            }


class PartSink(Datasink[None]):
    """Commits each slice as it comes out of the engine; the driver has nothing left to do."""

    def write(self, blocks: Iterable[Block], ctx: Any) -> None:  # noqa: ARG002  # Ray's signature
        rows: list[dict[str, Any]] = []
        for block in blocks:
            rows += BlockAccessor.for_block(block).iter_rows(public_row_format=True)

        async def commit(state: State, storage: Storage) -> None:
            for row in rows:
                body = PartBody(row["output"], row["error"], SliceUsage(*json.loads(row["usage"])))
                result = SliceResult(Outcome(row["outcome"]), body, row["reason"])
                await settle(state, storage, _claims.decode(row["claim"]), result)

        _with_stores(commit)


def _with_stores(work: Callable[[State, Storage], Awaitable[T]]) -> T:
    """Run `work` in a Ray task's process, with connections of its own."""

    async def run() -> T:
        settings = read_settings()
        state, storage = open_state(settings), open_storage(settings)
        try:
            return await work(state, storage)
        finally:
            storage.close()
            await state.close()

    return asyncio.run(run())
