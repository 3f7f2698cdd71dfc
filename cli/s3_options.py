"""The options of commands that need the fleet's S3 server, in one place."""

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from cli.options import S3Bucket
from shared.storage import DEFAULT_REGION, Storage


class S3Options(NamedTuple):
    """The S3 server named on the command line. Without one, the run directory's own is used."""

    s3_endpoint: Annotated[
        str | None,
        typer.Option(
            envvar="BATCHYARD_S3_ENDPOINT",
            help="The fleet's S3, unless it is in the folder.",
            show_envvar=True,
        ),
    ] = None
    s3_access_key: Annotated[
        str | None, typer.Option(envvar="BATCHYARD_S3_ACCESS_KEY", show_envvar=True)
    ] = None
    s3_secret_key: Annotated[
        str | None, typer.Option(envvar="BATCHYARD_S3_SECRET_KEY", show_envvar=True)
    ] = None
    s3_bucket: S3Bucket = "batchyard"
    s3_region: Annotated[str, typer.Option(envvar="BATCHYARD_S3_REGION", show_envvar=True)] = (
        DEFAULT_REGION
    )

    def storage(self, run_dir: Path) -> Storage:
        """The bucket in the server that was named, or in the run directory's own.

        Raises SetupError.
        """
        import structlog

        from cli.fleet.running import s3_place

        # Programs read what a command prints, and need no line about a call that is repeated.
        structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))
        place = s3_place(run_dir, self.s3_endpoint, self.s3_access_key, self.s3_secret_key)
        return Storage(*place, self.s3_bucket, region=self.s3_region)


def with_s3_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each field of S3Options, where its parameter `s3` stands.

    Typer has no groups of options; it reads the signature that is made here.
    """
    signature = inspect.signature(command)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        parameters += _s3_parameters() if parameter.name == "s3" else [parameter]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        s3 = S3Options(**{name: given.pop(name) for name in S3Options._fields})
        command(**given, s3=s3)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by inspect
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _s3_parameters() -> list[inspect.Parameter]:
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=S3Options._field_defaults[name],
            annotation=annotation,
        )
        for name, annotation in S3Options.__annotations__.items()
    ]
