"""`batchyard install-servers`: RabbitMQ, Redis, Ceph S3 and the engine's libraries from Debian.

Nothing is started.
"""

import sys

import typer

from cli.servers import install, missing, missing_for_engine
from shared.errors import SetupError


def run() -> None:
    """Install what is missing. Raises SetupError that says what to do instead."""
    packages = [*missing(), *missing_for_engine()]
    install(packages, report=typer.echo)
    typer.echo(f"installed  {' '.join(packages)}" if packages else "servers    all installed")


if __name__ == "__main__":
    try:
        run()
    except SetupError as error:
        sys.exit(f"batchyard: {error}")
