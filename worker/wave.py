"""A wave: one Ray Data execution that runs slices of any batches of its lane.

What goes in are claims, and what comes out is nothing: its mappers, actors with several blocks of
slices in flight, read the lines, send them to the engine in chunks, and commit. So lines and
results cross no process but the engine's, and a wave has no processes but its mappers.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import ray.data
from ray.data import ActorPoolStrategy, DataContext

from shared.cache_salt import CacheSalts
from shared.interpreter import prepare_to_serve
from shared.monitoring import log
from shared.openai.row_rules import DEFAULT_RULES, RowRules
from shared.settings import open_storage
from shared.slices import Claim
from shared.tracing import spans
from worker.adapter_engine import with_adapters
from worker.batch_watch import BatchWatch
from worker.block_runner import BlockRunner
from worker.connections import open_state, read_settings
from worker.engine_client import EngineClient
from worker.media_engine import with_media
from worker.slice_runner import SliceRunner
from worker.wave_blocks import blocks_at_once, grouped

_claims = msgspec.json.Decoder(list[Claim])
#: The columns of a block in Arrow. It has one row.
_Columns = dict[str, Any]
#: The resource of the nodes that have logins for Redis and S3. Engines are on other nodes, or at
#: least have no logins in their environment.
STORES = "stores"
#: What a process of a wave asks for: it waits for others, and needs no CPU of its own.
_LIGHT: dict[str, Any] = {"num_cpus": 0, "resources": {STORES: 0.001}}
#: Seconds for sending a block's spans.
_FLUSH_SECONDS = 2.0


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
    rows_of_call: int,
    pool: str = "",
    share_prefixes: tuple[str, ...] = (),
    rules: RowRules = DEFAULT_RULES,
    patience_seconds: float | None = None,
    wave: str = "",
    mappers: int = 1,
) -> None:
    """Run the slices up to their commits; blocks until the last one. Meant for a thread.

    A slice goes back if the engine has had no replica for `patience_seconds`. `wave` is the trace
    context of the wave. `mappers` processes run blocks. Each may have `rows_in_engine` rows there:
    when the others have run out of blocks, the last one has to keep the engine full alone.
    """
    blocks = grouped(claims)
    mappers = min(mappers, len(blocks))
    of_mapper = blocks_at_once(blocks, rows_in_engine)
    # `from_arrow` would ask for the schema of each block in a task of its own, for which Ray starts
    # as many processes as it has processors.
    ray.data.from_items(
        [{"claims": msgspec.json.encode(block)} for block in blocks],
        override_num_blocks=len(blocks),
    ).map_batches(
        SliceMapper,
        # One block at a time: it is retried as a whole, which changes nothing where it has
        # committed.
        batch_size=None,
        max_concurrency=of_mapper,
        compute=ActorPoolStrategy(size=mappers),
        fn_constructor_kwargs={
            "app_name": app_name,
            "pool": pool,
            "rows_in_engine": rows_in_engine,
            "rows_of_call": rows_of_call,
            "blocks_at_once": of_mapper,
            "share_prefixes": share_prefixes,
            "rules": rules,
            "patience_seconds": patience_seconds,
            "wave": wave,
        },
        **_LIGHT,
    ).materialize()


class SliceMapper:
    """Runs the slices on the engine: an async actor with several blocks in flight."""

    def __init__(
        self,
        app_name: str,
        pool: str,
        rows_in_engine: int,
        rows_of_call: int,
        blocks_at_once: int,
        share_prefixes: tuple[str, ...],
        rules: RowRules,
        patience_seconds: float | None,
        wave: str,
    ) -> None:
        settings = read_settings()
        log.configure_own("wave", settings.log_level)
        spans.start("wave")
        state = open_state(settings)
        client = EngineClient(
            app_name,
            patience_seconds=patience_seconds,
            salts=CacheSalts(settings.cache_key, share_prefixes),
        )
        runner = SliceRunner(
            with_media(with_adapters(client, settings), settings, rules),
            BatchWatch(state),
            rows_in_engine=rows_in_engine,
            rows_per_engine_call=rows_of_call,
            pool=pool,
            wave=wave,
        )
        self._blocks = BlockRunner(
            state,
            open_storage(settings),
            runner,
            blocks_at_once=blocks_at_once,
            slice_events=settings.slice_events,
        )
        prepare_to_serve()

    async def __call__(self, block: _Columns) -> AsyncIterator[_Columns]:
        [claims] = block["claims"]
        await self._blocks.run(_claims.decode(bytes(claims)))
        yield {"done": [True]}
        if spans.is_on():
            # Nothing tells this process that its wave has ended.
            await asyncio.to_thread(spans.flush, _FLUSH_SECONDS)
