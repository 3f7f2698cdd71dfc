"""`batchyard completion`: completion of commands and options for a shell."""

from typing import Annotated, Literal

import typer


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="Your shell.")],
) -> None:
    """Print a script that completes commands, for your shell to read when it starts."""
    # The function behind typer's own option, which would write to the user's files.
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    script = get_completion_script(
        prog_name="batchyard", complete_var="_BATCHYARD_COMPLETE", shell=shell
    )
    typer.echo(script)
