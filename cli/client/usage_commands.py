"""`batchyard usage`: what batches have used and cost, by the day on which they ended."""

import time
from typing import Annotated, Any

import typer

from cli.client.options import AsJson, Context, connected
from cli.client.output import Record, is_terminal, print_json, print_records
from cli.client.words import day_text

Days = Annotated[int, typer.Option(min=1, max=180, help="The last so many days, in UTC.")]

_DAY = 86_400
_USAGE_COLUMNS = ("DAY", "TENANT", "MODEL", "REQUESTS", "TOKENS IN", "CACHED", "TOKENS OUT")
_COST_COLUMNS = ("DAY", "TENANT", "FOR", "GPU SECONDS", "COST")


def usage(days: Days = 7, context: Context = None, *, as_json: AsJson = False) -> None:
    """Show what your batches have used and cost; with the scope `operator`, those of all."""
    now = int(time.time())
    start = (now // _DAY - days + 1) * _DAY
    with connected(context) as gateway:

        def listed(what: str, *groups: str) -> list[Record]:
            query: dict[str, Any] = {"start_time": start, "limit": days, "group_by[]": list(groups)}
            found = gateway.get(f"organization/{what}", **query)["data"]
            return [
                {"day": day_text(bucket["start_time"]), **result}
                for bucket in found
                for result in bucket["results"]
            ]

        used = [
            *listed("usage/completions", "project_id", "model"),
            *listed("usage/embeddings", "project_id", "model"),
        ]
        cost = listed("costs", "project_id", "line_item")
    if as_json or not is_terminal():
        for record in (*used, *cost):
            print_json(record)
        return
    print_records(used, _USAGE_COLUMNS, _usage_row, as_json=False)
    typer.echo()
    print_records(cost, _COST_COLUMNS, _cost_row, as_json=False)


def _usage_row(result: Record) -> tuple[str, ...]:
    return (
        result["day"],
        result["project_id"],
        result["model"] or "several",
        f"{result['num_model_requests']:,}",
        f"{result['input_tokens']:,}",
        f"{result.get('input_cached_tokens', 0):,}",
        f"{result.get('output_tokens', 0):,}",
    )


def _cost_row(result: Record) -> tuple[str, ...]:
    amount = result["amount"]
    return (
        result["day"],
        result["project_id"] or "-",
        result["line_item"],
        f"{result['gpu_seconds']:,.1f}",
        f"{amount['value']:,.4f} {amount['currency'].upper()}" if amount["value"] else "-",
    )
