"""`batchyard bill`: what a month has cost, in FOCUS."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from cli.options import HERE, RedisUrl, RunDir, with_state
from cli.s3_options import S3Options, with_s3_options
from shared.catalog_file import load_catalog
from shared.costs.bill import Format, bill_key, make_bill
from shared.costs.focus import Month
from shared.errors import InvalidInputError
from shared.state import State


@with_s3_options
def run(
    month: Annotated[
        str | None, typer.Argument(help="Such as 2026-11; without it, the one that runs.")
    ] = None,
    *,
    form: Annotated[Format, typer.Option("--format", help="The form of the file.")] = "csv",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write it there, not to standard output.")
    ] = None,
    store: Annotated[
        bool, typer.Option("--store", help="Write it to the bucket, in place of what is there.")
    ] = False,
    catalog: Annotated[
        Path | None,
        typer.Option(
            envvar="BATCHYARD_CATALOG",
            help="Prices of live, starting and idle time; by default the folder's.",
            show_envvar=True,
        ),
    ] = None,
    run_dir: RunDir = HERE,
    redis_url: RedisUrl = None,
    s3: S3Options,
) -> None:
    """Write what a month has cost so far: a line for each day, tenant and engine, in FOCUS 1.2.

    The dispatcher writes the bill of each month that has ended to the bucket, under bills/.
    """
    import asyncio

    from cli.fleet.catalog import CATALOG_FILE

    try:
        wanted = Month.of(time.time()) if month is None else Month.named(month)
    except ValueError:
        raise InvalidInputError(f"{month} is no month, such as 2026-11.") from None
    prices = load_catalog(catalog or run_dir / CATALOG_FILE)

    async def make(state: State) -> bytes | None:
        return await make_bill(state, prices, wanted, form, account=s3.s3_bucket)

    bill = with_state(make, run_dir, redis_url)
    if bill is None:
        raise InvalidInputError(f"Nothing was counted in {wanted}.")
    if store:
        storage = s3.storage(run_dir)
        asyncio.run(storage.put(bill_key(wanted, form), bill))
        storage.close()
        typer.echo(f"s3://{s3.s3_bucket}/{bill_key(wanted, form)}", err=True)
    elif output:
        output.write_bytes(bill)
    else:
        sys.stdout.buffer.write(bill)
