"""The command `batchyard`."""

import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from cli.client import commands, completion
from cli.client.exit_codes import code_of_error
from cli.operators import PANEL, Commands, missing_library
from shared.errors import BatchyardError

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Batch inference for large language models on machines that you own.",
)

commands.add_to(app)


def _show_version(asked: bool) -> None:  # noqa: FBT001  # typer hands it over by position
    if asked:
        from importlib.metadata import version

        typer.echo(version("batchyard"))
        raise typer.Exit


@app.callback()
def _batchyard(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Batch inference for large language models on machines that you own."""


@app.command(rich_help_panel=PANEL)
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
    gateways: Annotated[
        int, typer.Option(min=1, help="How many gateway processes share the port.")
    ] = 1,
    dispatchers: Annotated[
        int, typer.Option(min=1, help="How many dispatchers there are; one of them leads.")
    ] = 1,
    write_env: Annotated[
        Path | None,
        typer.Option(help="Write variables for scripts here once the fleet is ready."),
    ] = None,
    amqp_url: Annotated[str | None, typer.Option(help="Use this RabbitMQ of your own.")] = None,
    redis_url: Annotated[str | None, typer.Option(help="Use this Redis of your own.")] = None,
    s3_endpoint: Annotated[str | None, typer.Option(help="Use this S3 server of your own.")] = None,
    s3_access_key: Annotated[str | None, typer.Option(envvar="BATCHYARD_S3_ACCESS_KEY")] = None,
    s3_secret_key: Annotated[str | None, typer.Option(envvar="BATCHYARD_S3_SECRET_KEY")] = None,
    lane_redis_url: Annotated[
        str | None,
        typer.Option(
            envvar="BATCHYARD_LANE_REDIS_URL",
            help="With --redis-url: the same Redis with the login of lane jobs.",
        ),
    ] = None,
    lane_s3_access_key: Annotated[
        str | None,
        typer.Option(
            envvar="BATCHYARD_LANE_S3_ACCESS_KEY",
            help="With --s3-endpoint: the login of lane jobs there.",
        ),
    ] = None,
    lane_s3_secret_key: Annotated[
        str | None, typer.Option(envvar="BATCHYARD_LANE_S3_SECRET_KEY")
    ] = None,
) -> None:
    """Start the whole fleet on this machine and keep it running until Ctrl-C."""
    from cli.fleet import Options, OwnServers
    from cli.up import run

    own = OwnServers(
        amqp_url,
        redis_url,
        s3_endpoint,
        s3_access_key,
        s3_secret_key,
        lane_redis_url=lane_redis_url,
        lane_s3_access_key=lane_s3_access_key,
        lane_s3_secret_key=lane_s3_secret_key,
    )
    run(
        Options(
            run_dir,
            own=own,
            catalog=catalog,
            models=tuple(model or ()),
            port=port,
            gateways=gateways,
            dispatchers=dispatchers,
        ),
        write_env=write_env,
    )


@app.command(rich_help_panel=PANEL)
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
    rich_help_panel=PANEL,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def credentials(context: typer.Context) -> None:
    """Create the secrets of a fleet in containers, for compose.yaml or k8s/."""
    from cli.credentials import main as make

    sys.exit(make(context.args))


@app.command("install-servers", rich_help_panel=PANEL)
def install_servers() -> None:
    """Install RabbitMQ, Redis and Ceph S3 from Debian's packages if they are missing."""
    from cli.install import run

    run()


def main() -> None:
    """Errors that the user can fix are one message without a traceback; the docs list the codes."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    completion.prepare()
    try:
        app(standalone_mode=True)
    except BatchyardError as error:
        typer.secho(f"batchyard: {error}", err=True, fg="red")
        sys.exit(code_of_error(error))
    except ModuleNotFoundError as error:
        if (text := missing_library(error)) is None:
            raise
        typer.secho(f"batchyard: {text}", err=True, fg="red")
        sys.exit(2)
    except KeyboardInterrupt:
        os._exit(130)


if __name__ == "__main__":
    main()
