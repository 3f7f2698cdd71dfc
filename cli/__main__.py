"""The command `batchyard`."""

import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from cli.dead_letters import app as dead_letters
from cli.keys import app as keys
from cli.rebuild import run as rebuild
from cli.s3_logins import app as s3_logins
from cli.topology import run as topology
from cli.users import app as users
from shared.errors import BatchyardError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Batch inference for large language models on machines that you own.",
)

app.add_typer(keys, name="keys")
app.command("topology")(topology)
app.command("rebuild")(rebuild)
app.add_typer(users, name="users")
app.add_typer(s3_logins, name="s3-logins")
app.add_typer(dead_letters, name="dead-letters")


@app.callback()
def _batchyard() -> None:
    """Batch inference for large language models on machines that you own."""


@app.command()
def up(
    run_dir: Annotated[
        Path,
        typer.Option(help="Where the fleet keeps its data, logs, ports and secrets."),
    ] = Path(".batchyard"),
    catalog: Annotated[Path | None, typer.Option(help="Models and pools (YAML).")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Serve this Hugging Face model or local folder too; repeatable."),
    ] = None,
    port: Annotated[int | None, typer.Option(help="The gateway's port.")] = None,
    write_env: Annotated[
        Path | None,
        typer.Option(help="Write variables for scripts here once the fleet is ready."),
    ] = None,
    amqp_url: Annotated[str | None, typer.Option(help="Use this RabbitMQ of your own.")] = None,
    redis_url: Annotated[str | None, typer.Option(help="Use this Redis of your own.")] = None,
    s3_endpoint: Annotated[str | None, typer.Option(help="Use this S3 server of your own.")] = None,
    s3_access_key: Annotated[str | None, typer.Option(envvar="BATCHYARD_S3_ACCESS_KEY")] = None,
    s3_secret_key: Annotated[str | None, typer.Option(envvar="BATCHYARD_S3_SECRET_KEY")] = None,
) -> None:
    """Start the whole fleet on this machine and keep it running until Ctrl-C."""
    from cli.fleet import Options, OwnServers
    from cli.up import run

    own = OwnServers(amqp_url, redis_url, s3_endpoint, s3_access_key, s3_secret_key)
    run(
        Options(run_dir, own=own, catalog=catalog, models=tuple(model or ()), port=port),
        write_env=write_env,
    )


@app.command()
def demo(
    run_dir: Annotated[
        Path,
        typer.Option(help="Where the fleet keeps its data, logs, ports and secrets."),
    ] = Path(".batchyard"),
    *,
    here: Annotated[
        bool,
        typer.Option(
            "--here",
            help="Start nothing: use the running fleet whose gateway has this environment.",
        ),
    ] = False,
) -> None:
    """Start the fleet, send it two batches of support tickets, and show their results."""
    from cli.demo import run, run_here

    run_here() if here else run(run_dir)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def credentials(context: typer.Context) -> None:
    """Create the secrets of a fleet in containers, for compose.yaml or k8s/."""
    from cli.credentials import main as make

    sys.exit(make(context.args))


@app.command("install-servers")
def install_servers() -> None:
    """Install RabbitMQ, Redis and Ceph S3 from Debian's packages if they are missing."""
    from cli.install import run

    run()


def main() -> None:
    """Errors that the user can fix are one message without a traceback, with exit code 2."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app(standalone_mode=True)
    except BatchyardError as error:
        typer.secho(f"batchyard: {error}", err=True, fg="red")
        sys.exit(2)
    except KeyboardInterrupt:
        os._exit(130)


if __name__ == "__main__":
    main()
