"""`batchyard cache`: the answers that batches may be given again."""

from collections.abc import Mapping
from typing import Any

import typer

from cli.client.options import AsJson, Context, connected
from cli.client.output import print_record

app = typer.Typer(no_args_is_help=True, help="Answers that batches with --cache are given again.")


@app.callback()
def cache() -> None:
    """Answers that batches with --cache are given again."""


@app.command()
def clear(context: Context = None, *, as_json: AsJson = False) -> None:
    """Forget all of them: batches with --cache ask their requests again."""
    with connected(context) as gateway:
        print_record(gateway.delete("cache"), _text, as_json=as_json)


def _text(cleared: Mapping[str, Any]) -> str:
    return f"forgotten: {cleared['rows']} rows"
