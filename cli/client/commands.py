"""Adds the users' commands to the program."""

from collections.abc import Callable

import typer

from cli.client import (
    ask_command,
    batch_commands,
    cache_commands,
    check,
    completion,
    context_commands,
    file_commands,
    fleet_commands,
    model_commands,
    open_commands,
    pipeline_commands,
    prepare,
    run_commands,
    usage_commands,
    webhook_commands,
    whoami,
)

_OTHERS = "Files, models and gateways"
#: In the order in which help lists them.
_PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Run files": (
        run_commands.run,
        run_commands.submit,
        run_commands.watch,
        run_commands.fetch,
        check.check,
        prepare.prepare,
    ),
    "Your batches": (
        batch_commands.ls,
        batch_commands.show,
        batch_commands.explain,
        batch_commands.cancel,
        batch_commands.pause,
        batch_commands.resume,
        batch_commands.retry,
        open_commands.open,
        open_commands.add,
        open_commands.close,
    ),
    _OTHERS: (
        model_commands.models,
        ask_command.ask,
        usage_commands.usage,
        whoami.whoami,
        completion.completion,
    ),
    "The fleet, for operators": (fleet_commands.top, fleet_commands.lanes, fleet_commands.engines),
}


def add_to(app: typer.Typer) -> None:
    """Add all of them."""
    for panel, commands in _PANELS.items():
        for command in commands:
            app.command(rich_help_panel=panel)(command)
    app.add_typer(pipeline_commands.app, name="pipeline", rich_help_panel="Your batches")
    app.add_typer(file_commands.app, name="files", rich_help_panel=_OTHERS)
    app.add_typer(cache_commands.app, name="cache", rich_help_panel=_OTHERS)
    app.add_typer(webhook_commands.app, name="webhooks", rich_help_panel=_OTHERS)
    app.add_typer(context_commands.app, name="context", rich_help_panel=_OTHERS)
