"""Commands that show a whole fleet. Their key needs the scope `operator`."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from cli.client.fleet_text import (
    ENGINE_COLUMNS,
    LANE_COLUMNS,
    TENANT_COLUMNS,
    engine_row,
    lane_row,
    last_start,
    summary,
    tenant_row,
)
from cli.client.options import AsJson, Context, connected
from cli.client.output import Record, is_terminal, print_json, print_lines, print_records, table_of

if TYPE_CHECKING:
    from rich.console import RenderableType

Once = Annotated[bool, typer.Option("--once", help="Show the fleet once, and end.")]
Every = Annotated[float, typer.Option(min=0.5, help="Look again after so many seconds.")]


def top(
    every: Every = 2.0, *, once: Once = False, context: Context = None, as_json: AsJson = False
) -> None:
    """Show lanes, engines, tenants, live calls: again and again until Ctrl-C; in a pipe, once."""
    with connected(context) as gateway:
        if as_json or not is_terminal():
            print_json(gateway.get("admin/fleet"))
            return
        from rich.console import Console
        from rich.live import Live

        console = Console(highlight=False)
        if once:
            console.print(_screen(gateway.get("admin/fleet")))
            return
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(_screen(gateway.get("admin/fleet")), refresh=True)
                time.sleep(every)


def lanes(context: Context = None, *, as_json: AsJson = False) -> None:
    """List all lanes: who has work there, and what it waits for."""
    with connected(context) as gateway:
        found = gateway.get("admin/lanes")["data"]
    print_records(found, LANE_COLUMNS, lane_row, as_json=as_json)


def engines(context: Context = None, *, as_json: AsJson = False) -> None:
    """List all engines: their states, their last starts by stages, and why one does not start."""
    with connected(context) as gateway:
        found = gateway.get("admin/engines")["data"]
    now = time.time()
    print_records(found, ENGINE_COLUMNS, lambda one: engine_row(one, now), as_json=as_json)
    if not as_json and is_terminal():
        print_lines(line for one in found if (line := last_start(one)))


def _is_busy(tenant: Record) -> bool:
    return bool(tenant["batches"] or tenant["enqueued_requests"] or tenant["live_calls"])


def _screen(fleet: Record) -> "RenderableType":
    from rich.console import Group

    busy = [one for one in fleet["tenants"] if _is_busy(one)]
    return Group(
        f"batches  {summary(fleet)}\n",
        table_of(LANE_COLUMNS, [lane_row(one) for one in fleet["lanes"]]),
        "",
        table_of(ENGINE_COLUMNS, [engine_row(one, fleet["at"]) for one in fleet["engines"]]),
        "",
        table_of(TENANT_COLUMNS, [tenant_row(one) for one in busy]),
    )
