"""`batchyard webhooks`: URLs that are called when batches or pipelines end."""

from typing import Annotated, Literal

import typer

from cli.client.options import AsJson, Context, connected
from cli.client.output import Record, details, note, print_record, print_records
from cli.client.words import time_text

app = typer.Typer(no_args_is_help=True, help="URLs that are called when your batches end.")

_ENDS = ("batch.completed", "batch.failed", "batch.expired", "batch.cancelled")
_COLUMNS = ("ID", "NAME", "URL", "EVENTS", "CREATED (UTC)")
_PAGE = 100

WebhookId = Annotated[str, typer.Argument(help="Its id, as `batchyard webhooks ls` shows it.")]
EventType = Literal[
    "batch.completed",
    "batch.failed",
    "batch.expired",
    "batch.cancelled",
    "pipeline.completed",
    "pipeline.failed",
    "pipeline.expired",
    "pipeline.cancelled",
]


@app.command()
def add(
    url: Annotated[str, typer.Argument(help="Where events are posted.")],
    *,
    name: Annotated[str, typer.Option(help="For yourself.")] = "batchyard",
    events: Annotated[
        list[str] | None,
        typer.Option(
            "--event",
            help="Such as pipeline.completed, instead of all ends of batches; repeatable.",
        ),
    ] = None,
    context: Context = None,
    as_json: AsJson = False,
) -> None:
    """Have a URL called when batches end; prints the signing secret, which is shown only now."""
    body = {"url": url, "name": name, "event_types": events or _ENDS}
    with connected(context) as gateway:
        print_record(gateway.post("webhook_endpoints", body), _with_secret, as_json=as_json)


@app.command("ls")
def list_webhooks(context: Context = None, *, as_json: AsJson = False) -> None:
    """List your webhooks, the newest first."""
    with connected(context) as gateway:
        found = gateway.all_of("webhook_endpoints", at_once=_PAGE)
    print_records(found, _COLUMNS, _row, as_json=as_json)


@app.command()
def rm(webhook_id: WebhookId, context: Context = None, *, as_json: AsJson = False) -> None:
    """Remove a webhook; what waits for it is not sent any more."""
    with connected(context) as gateway:
        gone = gateway.delete(f"webhook_endpoints/{webhook_id}")
    print_record(gone, lambda one: f"{one['id']}  deleted", as_json=as_json)


@app.command()
def rotate(
    webhook_id: WebhookId,
    *,
    keep_old: Annotated[
        bool, typer.Option("--keep-old", help="For a day, sign with the old secret, too.")
    ] = False,
    context: Context = None,
    as_json: AsJson = False,
) -> None:
    """Make a new signing secret, and print it."""
    body = {"keep_old_secret_active_for_24_hours": keep_old}
    with connected(context) as gateway:
        made = gateway.post(f"webhook_endpoints/{webhook_id}/rotate_secret", body)
    print_record(made, _with_secret, as_json=as_json)


@app.command("test")
def send_sample(
    webhook_id: WebhookId,
    event: Annotated[EventType, typer.Option(help="The sample's type.")] = "batch.completed",
    context: Context = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Send a sample event now, and say what the receiver answers."""
    with connected(context, waits=True) as gateway:
        tried = gateway.post(f"webhook_endpoints/{webhook_id}/test", {"event_type": event})
    print_record(tried, lambda one: f"It answered {one['status_code']}.", as_json=as_json)


def _with_secret(made: Record) -> str:
    note("Keep the secret: it is not shown again.")
    pairs = [(name, str(made.get(name) or "")) for name in ("id", "url", "signing_secret")]
    return details(pairs)


def _row(one: Record) -> tuple[str, ...]:
    kinds = [kind.removeprefix("batch.") for kind in one["event_types"]]
    return (one["id"], one["name"], one["url"], " ".join(kinds), time_text(one["created_at"]))
