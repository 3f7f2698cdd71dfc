"""`batchyard up`: the fleet in the foreground, with all that a person needs to use it."""

from pathlib import Path

import typer

from cli.fleet import Fleet, Options, foreground
from cli.servers.process import write_private_file


def run(options: Options, *, write_env: Path | None) -> None:
    """Start, say where things are, watch until interrupted, stop."""
    with foreground(options, typer.echo) as fleet:
        try:
            fleet.start()
            _introduce(fleet)
            if write_env is not None:
                lines = (f"{name}={value}\n" for name, value in fleet.client_environment().items())
                write_private_file(write_env, "".join(lines))
            fleet.watch()
        except KeyboardInterrupt:
            typer.echo("stopping")
            raise


def _introduce(fleet: Fleet) -> None:
    for child in fleet.children():
        typer.echo(f"process    {child.name:<12} {child.pid:>8}  {child.log_file}")
    for name, value in fleet.client_environment().items():
        typer.echo(f"{name}={value}")
    typer.secho("ready      Ctrl-C stops everything", fg="green")
