"""Waits for the end of a batch, with progress on standard error."""

from collections.abc import Callable
from typing import Any

from cli.client.exit_codes import ExitCode, code_of
from cli.client.following import follow
from cli.client.gateway import Gateway
from cli.client.progress import Progress


def wait_for(
    gateway: Gateway,
    batch_id: str,
    name: str = "",
    *,
    on_change: Callable[[dict[str, Any]], None] = lambda _: None,
) -> tuple[dict[str, Any], ExitCode]:
    """The batch once it has ended, and what became of it. `on_change` gets each state of it."""
    with Progress(gateway, name or batch_id) as progress:
        for batch in follow(gateway, batch_id):
            progress.show(batch)
            if batch is not None:
                on_change(batch)
    # Events leave out the list of errors.
    ended = gateway.get(f"batches/{batch_id}")
    return ended, code_of(ended)
