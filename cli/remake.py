"""`batchyard remake`: has the result files and the table of an ended batch made again."""

import asyncio
import json
from typing import Annotated

import stamina
import typer

from cli.options import HERE, AsJson, RedisUrl, RunDir
from cli.trail import told
from shared.errors import NotFoundError, SetupError
from shared.state import State

_PAUSE_SECONDS = 0.2


def run(
    batch: Annotated[str, typer.Argument(help="The id of a batch that has ended.")],
    *,
    timeout_seconds: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds to wait for the dispatcher.")
    ] = 600.0,
    run_dir: RunDir = HERE,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make damaged result files of a batch again from its parts, byte by byte as they were.

    A damaged table is made again from the result files. The leading dispatcher does it. Parts, and
    columns that a dataset carries, are kept for a day after the batch's end.
    """
    from cli.fleet.running import redis_url as find_redis

    redis = find_redis(run_dir, redis_url)
    with told(run_dir, "results.remake", about=batch):
        outcome = asyncio.run(_remake(redis, batch, timeout_seconds))
        if outcome.startswith("not possible"):
            raise NotFoundError(f"{batch}: {outcome}")
    typer.echo(json.dumps({"batch": batch, "outcome": outcome}) if as_json else outcome)


async def _remake(redis_url: str, batch_id: str, seconds: float) -> str:
    state = State(redis_url)
    try:
        await state.remakes.ask(batch_id)
        async for attempt in stamina.retry_context(
            on=_WaitingError,
            attempts=None,
            timeout=seconds,
            wait_initial=_PAUSE_SECONDS,
            wait_max=_PAUSE_SECONDS,
        ):
            with attempt:
                if outcome := await state.remakes.outcome(batch_id):
                    return outcome
                raise _WaitingError(
                    f"No dispatcher has done it within {seconds:g} seconds. Is one running?"
                )
        raise AssertionError("unreachable: stamina raises after its last attempt")
    finally:
        await state.remakes.forget(batch_id)
        await state.close()


class _WaitingError(SetupError):
    """There is no outcome yet."""
