"""A wave: one Ray Data execution that runs slices of any batches of its lane.

Its source yields blocks of slices, its mapper sends chunks of lines to the engine, and its sink
commits. Lines and results cross it as opaque bytes: Arrow damages dicts, and `read_text` splits
JSON.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import ray.data
from ray.data import ActorPoolStrategy, DataContext, Datasource, ReadTask
from ray.data.block import Block, BlockAccessor, BlockMetadata
from ray.data.datasource import Datasink

from shared.cache_salt import CacheSalts
from shared.monitoring import log
from shared.openai.row_rules import DEFAULT_RULES, RowRules
from shared.settings import open_storage
from shared.slices import Claim, RowCounts, SliceUsage, StrikeRange
from shared.spent import from_text, to_text
from shared.state import State
from shared.storage import Storage
from shared.tracing import spans
from worker.adapter_engine import with_adapters
from worker.batch_watch import BatchWatch
from worker.connections import open_state, read_settings, run_with_stores
from worker.engine_client import EngineClient
from worker.media_engine import with_media
from worker.outcomes import Outcome, SliceResult
from worker.rows import PartBody, nothing
from worker.slice_io import SliceInput, begin, fetch, settle
from worker.slice_runner import SliceRunner
from worker.wave_blocks import blocks_at_once, grouped

_claims = msgspec.json.Decoder(Claim)
#: The columns of a block in Arrow. Its rows are slices.
_Columns = dict[str, Any]
#: The resource of the nodes that have logins for Redis and S3. Engines are on other nodes, or at
#: least have no logins in their environment.
STORES = "stores"
#: What a process of a wave asks for: it waits for others, and needs no CPU of its own.
_LIGHT: dict[str, Any] = {"num_cpus": 0, "resources": {STORES: 0.001}}
#: Seconds for sending a block's spans.
_FLUSH_SECONDS = 2.0
#: How many processes read, and how many commit, in one wave.
_HELPERS = 2


def prepare_ray_data() -> None:
    """Set up every execution in this process."""
    context = DataContext.get_current()
    # A cold engine may take longer than Ray Data's patience. Claims notice dead ones.
    context.execution_no_progress_timeout_s = -1
    context.enable_progress_bars = False
    context.print_on_execution_start = False


def run_wave(
    claims: list[Claim],
    *,
    app_name: str,
    rows_in_engine: int,
    pool: str = "",
    share_prefixes: tuple[str, ...] = (),
    rules: RowRules = DEFAULT_RULES,
    patience_seconds: float | None = None,
    wave: str = "",
    mappers: int = 1,
) -> None:
    """Run the slices up to their commits; blocks until the last one. Meant for a thread.

    A slice goes back if the engine has had no replica for `patience_seconds`. `wave` is the trace
    context of the wave. `mappers` processes share the rows in the engine.
    """
    groups = grouped(claims)
    mappers = min(mappers, len(groups))
    rows_of_mapper = -(-rows_in_engine // mappers)
    ray.data.read_datasource(
        SliceSource(groups),
        override_num_blocks=len(groups),
        concurrency=_HELPERS,
        **_LIGHT,
    ).map_batches(
        SliceMapper,
        # One block at a time: it is retried as a whole, and committed as soon as it is done.
        batch_size=None,
        max_concurrency=blocks_at_once(groups, rows_of_mapper),
        compute=ActorPoolStrategy(size=mappers),
        fn_constructor_kwargs={
            "app_name": app_name,
            "pool": pool,
            "rows_in_engine": rows_of_mapper,
            "share_prefixes": share_prefixes,
            "rules": rules,
            "patience_seconds": patience_seconds,
            "wave": wave,
        },
        **_LIGHT,
    ).write_datasink(PartSink(), concurrency=_HELPERS, ray_remote_args=_LIGHT)


def _bytes(claims: list[Claim]) -> int:
    return sum(claim.slice.bytes_read for claim in claims)


class SliceSource(Datasource):
    """Reads each group of slices with one task, into one block."""

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
        async def fetch_all(_: State, storage: Storage) -> list[SliceInput]:
            return await asyncio.gather(*(fetch(storage, claim) for claim in claims))

        given = run_with_stores(fetch_all)
        bodies = [one.lines for one in given]
        yield pa.table(
            {
                "claim": pa.array(map(msgspec.json.encode, claims), pa.binary()),
                "lines": pa.array(
                    (b"" if isinstance(body, Outcome) else body for body in bodies), pa.binary()
                ),
                "unread": [body.value if isinstance(body, Outcome) else "" for body in bodies],
                "kept": pa.array((one.kept for one in given), pa.binary()),
            }
        )

    return ReadTask(
        read,
        BlockMetadata(
            num_rows=len(claims), size_bytes=_bytes(claims), input_files=None, exec_stats=None
        ),
    )


class SliceMapper:
    """Runs the slices on the engine: an async actor with several blocks in flight."""

    def __init__(
        self,
        app_name: str,
        pool: str,
        rows_in_engine: int,
        share_prefixes: tuple[str, ...],
        rules: RowRules,
        patience_seconds: float | None,
        wave: str,
    ) -> None:
        self._settings = settings = read_settings()
        log.configure_own("wave", settings.log_level)
        spans.start("wave")
        self._state, self._storage = open_state(settings), open_storage(settings)
        client = EngineClient(
            app_name,
            patience_seconds=patience_seconds,
            salts=CacheSalts(settings.cache_key, share_prefixes),
        )
        self._runner = SliceRunner(
            with_media(with_adapters(client, settings), settings, rules),
            BatchWatch(self._state),
            rows_in_engine=rows_in_engine,
            rows_per_engine_call=settings.rows_per_engine_call,
            pool=pool,
            wave=wave,
        )

    async def __call__(self, block: _Columns) -> AsyncIterator[_Columns]:
        claims = [_claims.decode(bytes(claim)) for claim in block["claim"]]
        may_run = await begin(self._state, claims)
        results = await asyncio.gather(
            *(
                self._run(claim, given, may_run=may)
                for claim, given, may in zip(claims, _given(block), may_run, strict=True)
            )
        )
        yield {"claim": pa.array(map(bytes, block["claim"]), pa.binary()), **_to_columns(results)}
        if spans.is_on():
            # Nothing tells this process that its wave has ended.
            await asyncio.to_thread(spans.flush, _FLUSH_SECONDS)

    async def _run(self, claim: Claim, given: SliceInput, *, may_run: bool) -> SliceResult:
        if not may_run:
            return SliceResult(Outcome.SETTLED, nothing())
        result = await self._runner.run(claim, given)
        if result.outcome.is_trouble or result.body.rows == claim.slice.rows:
            return result
        # Whoever has stopped the batch waits for this slice, and not for the others of its block.
        await settle(
            self._state,
            self._storage,
            claim,
            result,
            slice_events=self._settings.slice_events,
        )
        return SliceResult(Outcome.SETTLED, nothing())


class PartSink(Datasink[None]):
    """Commits each slice as it comes out of the engine. The driver has nothing left to do."""

    def write(self, blocks: Iterable[Block], ctx: Any) -> None:  # noqa: ARG002  # Ray's signature
        rows: list[dict[str, Any]] = []
        for block in blocks:
            rows += BlockAccessor.for_block(block).iter_rows(public_row_format=True)
        slice_events = read_settings().slice_events

        async def settle_all(state: State, storage: Storage) -> None:
            ends = [(_claims.decode(row["claim"]), _to_result(row)) for row in rows]
            await asyncio.gather(
                *(
                    settle(state, storage, claim, result, slice_events=slice_events)
                    for claim, result in ends
                )
            )

        run_with_stores(settle_all)


def _given(block: _Columns) -> Iterator[SliceInput]:
    """The inverse of what `_read_task` does."""
    for lines, unread, kept in zip(block["lines"], block["unread"], block["kept"], strict=True):
        yield SliceInput(Outcome(unread) if unread else bytes(lines), bytes(kept))


def _to_columns(results: list[SliceResult]) -> _Columns:
    return {
        "outcome": [result.outcome.value for result in results],
        "reason": [result.reason for result in results],
        "strike_ranges": [json.dumps(result.strike_ranges) for result in results],
        "output": pa.array((result.body.output for result in results), pa.binary()),
        "error": pa.array((result.body.error for result in results), pa.binary()),
        "usage": [json.dumps(result.body.usage) for result in results],
        "spent": [to_text(result.body.spent) for result in results],
        "counts": [json.dumps(result.body.counts) for result in results],
    }


def _to_result(row: dict[str, Any]) -> SliceResult:
    """The inverse of `_to_columns`, for one row. Waves run no suspects, so nothing else is set."""
    usage = SliceUsage(*json.loads(row["usage"]))
    counts = RowCounts(*json.loads(row["counts"]))
    body = PartBody(row["output"], row["error"], usage, from_text(row["spent"]), counts)
    ranges = tuple(StrikeRange(*found) for found in json.loads(row["strike_ranges"]))
    return SliceResult(Outcome(row["outcome"]), body, row["reason"], ranges)
