"""`batchyard up`: the fleet in the foreground, and what people need to use it."""

from pathlib import Path

import typer

from cli.fleet import Fleet, Options, foreground
from cli.servers.process import write_private_file
from cli.shell import assignments


def run(options: Options, *, write_env: Path | None) -> None:
    """Start the fleet, print its addresses, watch it until interrupted, and stop it."""
    with foreground(options, typer.echo) as fleet:
        try:
            fleet.start()
            _introduce(fleet)
            if write_env is not None:
                write_private_file(write_env, assignments(fleet.client_environment()))
            fleet.watch()
        except KeyboardInterrupt:
            typer.echo("stopping")
            raise


def _introduce(fleet: Fleet) -> None:
    for child in fleet.children():
        typer.echo(f"process    {child.name:<12} {child.pid:>8}  {child.log_file}")
    typer.echo(f"logs       of lane jobs and engines: {fleet.ray.logs}")
    typer.echo(assignments(fleet.client_environment()), nl=False)
    typer.secho("ready      Ctrl-C stops everything", fg="green")
