"""The operators' commands, each imported when it is used.

They need the libraries of a fleet. These take long to import, and somebody who only uses a fleet
does not have them.
"""

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

PANEL = "Your own fleet"
#: Where each command is, and what it does.
_COMMANDS = {
    "bill": ("cli.bill:run", "Write what a month has cost, in FOCUS, as CSV or Parquet."),
    "keys": ("cli.keys:app", "Create, list, change and revoke API keys."),
    "tune": ("cli.tune:run", "Find the settings with which an engine answers the most rows."),
    "tenants": ("cli.tenants:app", "Show and set what tenants may do and have."),
    "topology": ("cli.topology:run", "Show what RabbitMQ needs, for a broker of your own."),
    "rebuild": ("cli.rebuild:run", "Rebuild the index in Redis from S3."),
    "doctor": ("cli.doctor:run", "Look at a whole fleet, and say what is wrong and what to do."),
    "fsck": ("cli.fsck:run", "Compare S3 with Redis, and name what is damaged."),
    "remake": ("cli.remake:run", "Make damaged result files of a batch again."),
    "users": ("cli.users:app", "Create, limit, list, renew and delete tenants' RabbitMQ logins."),
    "s3-logins": ("cli.s3_logins:app", "Create, list, renew and delete tenants' S3 logins."),
    "lane-logins": ("cli.lane_logins:app", "Print what lane jobs may do at Redis and S3."),
    "logs": ("cli.logs:run", "Show what all processes have logged about a batch."),
    "dead-letters": ("cli.dead_letters:app", "Show, replay and drop messages that were refused."),
}
#: What `pip install batchyard` alone leaves out of what the commands above import first.
_LIBRARIES = {
    "aio_pika",
    "cloudevents",
    "minio",
    "openai",
    "prometheus_client",
    "psutil",
    "pyarrow",
    "pydantic_settings",
    "redis",
    "structlog",
    "yaml",
}


class Unloaded(TyperGroup):
    """Stands for a command that has not been imported."""

    def __init__(self, name: str, place: str, text: str) -> None:
        super().__init__(name=name, help=text, rich_help_panel=PANEL)
        self._place = place

    def load(self) -> Any:
        """The command itself."""
        module, _, attribute = self._place.partition(":")
        found = getattr(import_module(module), attribute)
        if not isinstance(found, typer.Typer):
            alone = typer.Typer(add_completion=False)
            alone.command(self.name)(found)
            found = alone
        command = get_command(found)
        command.name = self.name
        return command


class Commands(TyperGroup):
    """All commands, those of operators among them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, (place, text) in _COMMANDS.items():
            self.commands[name] = Unloaded(name, place, text)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first argument names, imported."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, Unloaded) else command, rest


def missing_library(error: ModuleNotFoundError) -> str | None:
    """What to say if a command of operators lacks its libraries; None for another error."""
    library = (error.name or "").partition(".")[0]
    if library not in _LIBRARIES:
        return None
    return (
        f"This command is for operators, and their library '{library}' is not installed. "
        "Install it: pip install 'batchyard[cli]'"
    )
