"""A wave: one Ray Data execution that runs slices of any batches of its lane.

Its source yields one block a slice (small ones share one), its client sends chunks of lines to the
engine, its sink commits. Lines and results cross it as opaque bytes: Arrow damages dicts, and
`read_text` splits JSON.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import ray.data
from ray.data import ActorPoolStrategy, DataContext, Datasource, ReadTask
from ray.data.block import Block, BlockAccessor, BlockMetadata
from ray.data.datasource import Datasink

from shared.slices import Claim, SliceUsage, StrikeRange
from shared.state import State
from shared.storage import Storage
from worker.connections import open_state, read_settings, run_with_stores
from worker.engine_client import EngineClient
from worker.rows import PartBody
from worker.slice_runner import (
    BatchWatch,
    Outcome,
    SliceResult,
    SliceRunner,
    fetch,
    settle,
)

_claims = msgspec.json.Decoder(Claim)
#: Rows of Arrow are slices: what each column holds.
Batch = dict[str, Any]
#: Light processes that wait for others need no core of their own.
_LIGHT = 0.1
#: Reading and committing processes of one wave.
_HELPERS = 2
_ROWS_PER_BLOCK = 128


def prepare_ray_data() -> None:
    """Settings of every execution in this process."""
    context = DataContext.get_current()
    # A cold engine may need longer than Ray Data's patience; dead ones are noticed by claims.
    context.execution_no_progress_timeout_s = -1
    context.enable_progress_bars = False
    context.print_on_execution_start = False


def run_wave(
    claims: list[Claim],
    *,
    app_name: str,
    rows_in_engine: int,
    patience_seconds: float | None = None,
) -> None:
    """Run the slices to their commits; blocks until the last one. Meant for a thread of its own.

    Slices go back that have found no replica of the engine for `patience_seconds`.
    """
    groups = grouped(claims)
    blocks_at_once = 1 + max(1, rows_in_engine // _rows(groups[0]))
    ray.data.read_datasource(
        SliceSource(groups),
        override_num_blocks=len(groups),
        concurrency=_HELPERS,
        num_cpus=_LIGHT,
    ).map_batches(
        SliceMapper,
        # A block is what is retried, and what is committed as soon as it is done.
        batch_size=None,
        num_cpus=_LIGHT,
        max_concurrency=blocks_at_once,
        compute=ActorPoolStrategy(size=1),
        fn_constructor_kwargs={
            "app_name": app_name,
            "rows_in_engine": rows_in_engine,
            "patience_seconds": patience_seconds,
        },
    ).write_datasink(PartSink(), concurrency=_HELPERS, ray_remote_args={"num_cpus": _LIGHT})


def grouped(claims: list[Claim]) -> list[list[Claim]]:
    """The claims in order, small ones together: a Ray task for each of five rows costs too much."""
    groups: list[list[Claim]] = []
    for claim in claims:
        if groups and _rows(groups[-1]) + claim.slice.rows <= _ROWS_PER_BLOCK:
            groups[-1].append(claim)
        else:
            groups.append([claim])
    return groups


def _rows(claims: list[Claim]) -> int:
    return sum(claim.slice.rows for claim in claims)


class SliceSource(Datasource):
    """One read task, and so one block, a group of slices."""

    def __init__(self, groups: list[list[Claim]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # ray is half typed
        self._groups = groups

    def estimate_inmemory_data_size(self) -> int | None:
        return sum(map(_bytes, self._groups))

    def get_read_tasks(
        self,
        parallelism: int,  # noqa: ARG002  # Ray's signature, as the next two
        per_task_row_limit: int | None = None,  # noqa: ARG002
        data_context: DataContext | None = None,  # noqa: ARG002
    ) -> list[ReadTask]:
        return [_read_task(group) for group in self._groups]


def _read_task(claims: list[Claim]) -> ReadTask:
    def read() -> Iterable[Block]:
        async def get(_: State, storage: Storage) -> list[bytes | None]:
            return await asyncio.gather(*(fetch(storage, claim) for claim in claims))

        yield pa.table(
            {
                "claim": pa.array(map(msgspec.json.encode, claims), pa.binary()),
                "lines": pa.array(run_with_stores(get), pa.binary()),
            }
        )

    return ReadTask(
        read,
        BlockMetadata(
            num_rows=len(claims), size_bytes=_bytes(claims), input_files=None, exec_stats=None
        ),
    )


def _bytes(claims: list[Claim]) -> int:
    return sum(claim.slice.end - claim.slice.start for claim in claims)


class SliceMapper:
    """The engine client of a wave: an async actor with several slices in flight."""

    def __init__(self, app_name: str, rows_in_engine: int, patience_seconds: float | None) -> None:
        settings = read_settings()
        self._runner = SliceRunner(
            EngineClient(
                app_name,
                rows_per_engine_call=settings.rows_per_engine_call,
                patience_seconds=patience_seconds,
            ),
            BatchWatch(open_state(settings)),
            rows_in_engine=rows_in_engine,
            rows_per_engine_call=settings.rows_per_engine_call,
        )

    async def __call__(self, batch: Batch) -> AsyncIterator[Batch]:
        results = await asyncio.gather(
            *(
                self._runner.run(
                    _claims.decode(bytes(claim)), lines if lines is None else bytes(lines)
                )
                for claim, lines in zip(batch["claim"], batch["lines"], strict=True)
            )
        )
        yield {
            "claim": pa.array(map(bytes, batch["claim"]), pa.binary()),
            "outcome": [result.outcome.value for result in results],
            "reason": [result.reason for result in results],
            "doubts": [json.dumps(result.doubts) for result in results],
            "output": pa.array((result.body.output for result in results), pa.binary()),
            "error": pa.array((result.body.error for result in results), pa.binary()),
            "usage": [json.dumps(result.body.usage) for result in results],
        }


class PartSink(Datasink[None]):
    """Commits each slice as it comes out of the engine; the driver has nothing left to do."""

    def write(self, blocks: Iterable[Block], ctx: Any) -> None:  # noqa: ARG002  # Ray's signature
        rows: list[dict[str, Any]] = []
        for block in blocks:
            rows += BlockAccessor.for_block(block).iter_rows(public_row_format=True)
        slice_events = read_settings().slice_events

        async def commit(state: State, storage: Storage) -> None:
            await asyncio.gather(
                *(_settle(state, storage, row, slice_events=slice_events) for row in rows)
            )

        run_with_stores(commit)


async def _settle(
    state: State, storage: Storage, row: dict[str, Any], *, slice_events: bool
) -> None:
    body = PartBody(row["output"], row["error"], SliceUsage(*json.loads(row["usage"])))
    doubts = tuple(StrikeRange(*doubt) for doubt in json.loads(row["doubts"]))
    result = SliceResult(Outcome(row["outcome"]), body, row["reason"], doubts)
    await settle(state, storage, _claims.decode(row["claim"]), result, slice_events=slice_events)
