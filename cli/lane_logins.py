"""`batchyard lane-logins`: the rights of lane jobs, for servers of one's own."""

import json
from typing import Annotated

import typer

from cli.options import S3Bucket
from cli.s3_logins.policy import lane_policy
from shared.settings import DEFAULT_TENANT_PREFIX
from shared.state.access import lane_rules
from shared.state.state import NAMESPACE

app = typer.Typer(
    no_args_is_help=True, help="Print what the logins of lane jobs may do at Redis and S3."
)


@app.command()
def redis() -> None:
    """Print the rights at Redis as words of its ACL: `ACL SETUSER lane on >PASSWORD WORDS`."""
    typer.echo(lane_rules(NAMESPACE))


@app.command()
def s3(
    *,
    bucket: S3Bucket = "batchyard",
    tenant_prefix: Annotated[
        str,
        typer.Option(
            envvar="BATCHYARD_TENANT_PREFIX",
            help="Where in the bucket a tenant places inputs, as the dispatcher has it.",
            show_envvar=True,
        ),
    ] = DEFAULT_TENANT_PREFIX,
) -> None:
    """Print the rights at S3 as an IAM policy. Add buckets of BATCHYARD_INPUT_PLACES yourself."""
    typer.echo(json.dumps(lane_policy(bucket, tenant_prefix), indent=2))
