"""Commands on batches that exist: look at them, and control them."""

import time
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import typer

from cli.client.options import (
    AsJson,
    BatchId,
    BatchIds,
    Context,
    Wait,
    connected,
    end_with,
)
from cli.client.output import Record, details, note, print_record, print_records
from cli.client.words import duration_text, rows_text, status_text, time_text

_PAGE = 100
_COLUMNS = ("ID", "STATUS", "ROWS", "FAILED", "MODEL", "AGE")
_MAX_SHOWN_ERRORS = 10


def ls(
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many.")] = 20,
    *,
    after: Annotated[str | None, typer.Option(help="Begin after the batch with this id.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Show all batches.")] = False,
    active: Annotated[
        bool, typer.Option("--active", help="Show only batches that have not ended.")
    ] = False,
    context: Context = None,
    as_json: AsJson = False,
) -> None:
    """List your batches, the newest first."""
    now = time.time()
    with connected(context) as gateway:
        more: list[str] = []
        records = _listed(
            gateway, limit=None if every else limit, after=after, active=active, more=more
        )
        print_records(records, _COLUMNS, lambda batch: _row(batch, now), as_json=as_json)
    if more:
        note(f"There are more: batchyard ls --after {more[0]}, or --all")


def show(batch_id: BatchId, context: Context = None, *, as_json: AsJson = False) -> None:
    """Show one batch."""
    with connected(context) as gateway:
        print_record(gateway.get(f"batches/{batch_id}"), batch_text, as_json=as_json)


def explain(batch_id: BatchId, context: Context = None, *, as_json: AsJson = False) -> None:
    """Say what a batch waits for, and when it may be done."""
    with connected(context) as gateway:
        print_record(gateway.get(f"batches/{batch_id}/explain"), _explanation_text, as_json=as_json)


def cancel(
    batch_ids: BatchIds, context: Context = None, *, wait: Wait = False, as_json: AsJson = False
) -> None:
    """Cancel batches; results that they have by then are kept."""
    control(batch_ids, "cancel", context, wait=wait, as_json=as_json)


def pause(batch_ids: BatchIds, context: Context = None, *, as_json: AsJson = False) -> None:
    """Start no more requests of the batches; those that run will still end."""
    control(batch_ids, "pause", context, as_json=as_json)


def resume(batch_ids: BatchIds, context: Context = None, *, as_json: AsJson = False) -> None:
    """Let paused batches continue."""
    control(batch_ids, "resume", context, as_json=as_json)


def retry(
    batch_id: BatchId,
    rows: Annotated[
        Literal["all", "failed", "not_run"],
        typer.Option(help="Requests with an error response, those that never ran, or both."),
    ] = "all",
    *,
    wait: Wait = False,
    context: Context = None,
    as_json: AsJson = False,
) -> None:
    """Run the failed requests of an ended batch again, as a new batch."""
    from cli.client.waiting import wait_for

    with connected(context, waits=wait) as gateway:
        batch = gateway.post(f"batches/{batch_id}/retry", {"rows": rows})
        if not wait:
            print_record(batch, line_text, as_json=as_json)
            return
        note(f"{batch['id']} runs the requests again.")
        batch, code = wait_for(gateway, batch["id"])
        print_record(batch, line_text, as_json=as_json)
    end_with([code])


def batch_text(batch: Record) -> str:
    """Everything that matters of a batch, for a reader."""
    now = time.time()
    usage = batch["usage"]
    pairs = [
        ("id", batch["id"]),
        ("status", status_text(batch)),
        ("model", batch["model"] or ""),
        ("endpoint", batch["endpoint"]),
        ("rows", rows_text(batch)),
        ("failed", str(batch["request_counts"]["failed"] or "")),
        ("tokens", f"{usage['input_tokens']:,} in, {usage['output_tokens']:,} out"),
        ("cost", _cost_text(batch.get("cost"))),
        ("input", batch["input_file_id"]),
        ("output", batch["output_file_id"] or ""),
        ("errors", batch["error_file_id"] or ""),
        ("window", batch["completion_window"]),
        ("created", f"{time_text(batch['created_at'])} UTC"),
        *(
            (name, f"{time_text(batch[f'{name}_at'])} UTC")
            for name in ("completed", "failed", "expired", "cancelled")
            if batch.get(f"{name}_at")
        ),
        ("runs for", "" if _end(batch) else duration_text(now - batch["created_at"])),
        *(batch["metadata"] or {}).items(),
    ]
    return "\n".join([details(pairs), *error_lines(batch)])


def _cost_text(cost: Record | None) -> str:
    if cost is None:
        return ""
    amount = cost["amount"]
    money = f", {amount['value']:,.4f} {amount['currency'].upper()}" if amount else ""
    return f"{cost['gpu_seconds']:,.1f} GPU seconds{money}"


def error_lines(batch: Record) -> list[str]:
    """Why the batch failed, one line for each of the first reasons."""
    errors = (batch.get("errors") or {}).get("data") or []
    lines = [
        f"line {error['line']}: {error['message']}" if error["line"] else error["message"]
        for error in errors[:_MAX_SHOWN_ERRORS]
    ]
    if len(errors) > _MAX_SHOWN_ERRORS:
        lines.append(f"and {len(errors) - _MAX_SHOWN_ERRORS} more")
    return lines


def _listed(
    gateway: Any, *, limit: int | None, after: str | None, active: bool, more: list[str]
) -> Iterator[Record]:
    """The batches page by page. `more` gets the last id if there are others behind it."""
    from shared.lifecycle import FINAL

    shown = 0
    while True:
        size = _PAGE if limit is None or active else min(_PAGE, limit - shown)
        page = gateway.get("batches", limit=size, after=after)
        for batch in page["data"]:
            after = batch["id"]
            if active and batch["status"] in FINAL:
                continue
            yield batch
            shown += 1
            if shown == limit:
                if page["has_more"] or batch is not page["data"][-1]:
                    more.append(after)
                return
        if not page["has_more"]:
            return


def control(
    batch_ids: list[str], verb: str, context: str | None, *, as_json: bool, wait: bool = False
) -> None:
    """Make this call for each of the batches, and print what becomes of them."""
    from cli.client.waiting import wait_for

    with connected(context, waits=wait) as gateway:
        changed = [gateway.post(f"batches/{batch_id}/{verb}") for batch_id in batch_ids]
        for batch in changed:
            ended = wait_for(gateway, batch["id"])[0] if wait else batch
            print_record(ended, line_text, as_json=as_json)


def _row(batch: Record, now: float) -> tuple[str, ...]:
    return (
        batch["id"],
        status_text(batch),
        rows_text(batch),
        str(batch["request_counts"]["failed"] or "-"),
        batch["model"] or "-",
        duration_text(now - batch["created_at"]),
    )


def line_text(batch: Record) -> str:
    """A batch in one line."""
    return f"{batch['id']}  {status_text(batch)}  {rows_text(batch)}"


def _end(batch: Record) -> bool:
    return any(batch.get(f"{name}_at") for name in ("completed", "failed", "expired", "cancelled"))


def _explanation_text(explanation: Record) -> str:
    predicted = explanation.get("predicted") or {}
    lane = explanation.get("lane") or {}
    slices = explanation["slices"]
    counts = ", ".join(
        f"{slices[state]} {state}"
        for state in ("committed", "running", "ready", "pending")
        if slices[state]
    )
    retried = explanation["retried_slices"]
    pairs = [
        ("rows", rows_text(explanation)),
        ("slices", counts),
        ("ran again", f"{retried} slices" if retried else ""),
        ("lane", lane.get("name", "")),
        ("others", f"{lane['others']} rows" if lane else ""),
        ("starts", f"{time_text(predicted['start_at'])} UTC" if predicted.get("start_at") else ""),
        ("done", _end_text(predicted) if predicted else ""),
        ("rests on", _basis_text(predicted["rests_on"]) if predicted else ""),
    ]
    return f"{explanation['summary']}\n{details(pairs)}"


def _end_text(predicted: Record) -> str:
    first, last = time_text(predicted["finish_at"]), time_text(predicted["finish_p80_at"])
    return f"{first} to {last} UTC (predicted)"


def _basis_text(rests_on: Record) -> str:
    pace = {
        "batch": "this batch's rows so far",
        "kind": "rows of this endpoint and length",
        "lane": "all rows of the lane",
    }[rests_on["pace"]]
    start = f", and {rests_on['start_seconds']} s of a start" if rests_on["start_seconds"] else ""
    return f"{pace}, {rests_on['batches']} batches like it{start}"
