"""`batchyard completion`: completion of commands and options for a shell."""

import os
from typing import Annotated, Literal

import typer

#: In it a shell's script asks for completions.
_VARIABLE = "_BATCHYARD_COMPLETE"


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="Your shell.")],
) -> None:
    """Print a script that completes commands, for your shell to read when it starts."""
    # The function behind typer's own option, which would write to the user's files.
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    script = get_completion_script(prog_name="batchyard", complete_var=_VARIABLE, shell=shell)
    typer.echo(script)


def prepare() -> None:
    """Make typer know the shells, if one of them asks; it does so only for an option of its own."""
    if _VARIABLE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
