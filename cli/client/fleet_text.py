"""How a fleet's lanes, engines and tenants are told in tables. Pure."""

from collections.abc import Mapping
from typing import Any

from cli.client.words import bytes_text, duration_text, rate_text

_Record = Mapping[str, Any]

LANE_COLUMNS = ("LANE", "BATCHES", "ROWS LEFT", "RUNNING", "RATE", "TENANTS", "WAITS FOR")
ENGINE_COLUMNS = ("ENGINE", "STATE", "FOR", "REPLICAS", "GPUS", "STARTS", "LAST START", "WHY")
TENANT_COLUMNS = ("TENANT", "BATCHES", "ROWS LEFT", "QUEUED", "LIVE CALLS", "STORED", "LANES")
_SHOWN_TENANTS = 3
#: Shorter stages of a start are left out.
_SHOWN_SECONDS = 0.05


def lane_row(lane: _Record) -> tuple[str, ...]:
    """A row of LANE_COLUMNS."""
    rate = lane["rows_per_second"]
    return (
        lane["name"],
        _count(lane["batches"]),
        _count(lane["rows_left"]),
        _count(lane["running_slices"]),
        rate_text(rate) if rate and lane["batches"] else "-",
        _tenants(lane["tenants"]),
        lane["waits_for"]["message"] if lane["waits_for"] else "-",
    )


def engine_row(engine: _Record, now: float) -> tuple[str, ...]:
    """A row of ENGINE_COLUMNS; `now` is in Unix seconds."""
    replicas, seconds = engine["replicas"], engine["last_start_seconds"]
    return (
        engine["lane"],
        engine["state"],
        "-" if engine["since"] is None else duration_text(now - engine["since"]),
        _count(len(replicas)),
        _count(sum(engine["gpus"] for one in replicas if one["placed_at"] is not None)),
        _count(engine["starts"]),
        duration_text(seconds) if seconds else "-",
        engine["reason"] or "-",
    )


def last_start(engine: _Record) -> str:
    """What the engine's last start was made of, in a line; empty where nobody knows.

    And the last time that its core was started again.
    """
    if not (stages := _stages(engine["last_start_stages"])):
        return ""
    whole, row = engine["last_start_seconds"], engine["first_row_seconds"]
    after = "" if row is None else f"; first row {row:.1f} s"
    # A gateway of an older version does not tell.
    if again := engine.get("last_restart_stages"):
        after += f"; last restart of its core {sum(again.values()):.1f} s: {_stages(again)}"
    return f"{engine['lane']}: last start {whole:.1f} s: {stages}{after}"


def _stages(seconds: Mapping[str, float]) -> str:
    shown = (f"{stage} {one:.1f}" for stage, one in seconds.items() if one >= _SHOWN_SECONDS)
    return ", ".join(shown)


def tenant_row(tenant: _Record) -> tuple[str, ...]:
    """A row of TENANT_COLUMNS."""
    return (
        tenant["id"],
        _count(tenant["batches"]),
        _count(tenant["rows_left"]),
        _count(tenant["enqueued_requests"]),
        _count(tenant["live_calls"]),
        bytes_text(tenant["stored_bytes"]),
        ", ".join(tenant["lanes"]) or "-",
    )


def summary(fleet: _Record) -> str:
    """How many batches are in which status, in a line."""
    live = [
        f"{one['number']} {status.replace('_', ' ')}"
        + (f" (oldest {duration_text(one['oldest_seconds'])})" if one["number"] else "")
        for status, one in fleet["batches"].items()
    ]
    return ", ".join(live)


def _tenants(tenants: list[_Record]) -> str:
    names = [f"{one['tenant']} {one['rows_left']:,}" for one in tenants[:_SHOWN_TENANTS]]
    more = len(tenants) - len(names)
    return ", ".join([*names, *([f"and {more} more"] if more else [])]) or "-"


def _count(number: float) -> str:
    """A number as it is read; a part of a GPU keeps its decimals."""
    if not number:
        return "-"
    return f"{number:,.2f}" if number % 1 else f"{round(number):,}"
