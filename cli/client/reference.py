"""The reference of the users' commands, as docs/cli.md has it.

`python -m cli.client.reference PAGE` writes it into the page.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

from cli.client import commands
from cli.client.exit_codes import MEANINGS

_GENERATED = re.compile(r"(<!-- generated: ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def with_reference(page: str) -> str:
    """The page with its generated parts as the code says."""
    parts = {"exit codes": "\n".join(_exit_codes()), "commands": "\n".join(_commands())}
    return _GENERATED.sub(lambda found: f"{found[1]}\n{parts[found[2]]}\n{found[3]}", page)


def _exit_codes() -> Iterator[str]:
    yield from ("| Code | Means |", "|---|---|")
    for code, meaning in MEANINGS.items():
        yield f"| {int(code)} | {meaning} |"
    yield ""


def _commands() -> Iterator[str]:
    app = typer.Typer(add_completion=False)
    commands.add_to(app)
    root: Any = get_command(app)
    for name, command in root.commands.items():
        if subcommands := getattr(command, "commands", None):
            for second, inner in subcommands.items():
                yield from _command(f"{name} {second}", inner)
        else:
            yield from _command(name, command)


def _command(name: str, command: Any) -> Iterator[str]:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option"]
    usage = " ".join([name, *map(_placeholder, arguments)])
    yield from (f"### batchyard {name}", "", command.help, "", f"`batchyard {usage}`", "")
    if options:
        yield from ("| Option | Means |", "|---|---|")
    for option in options:
        names = ", ".join(f"`{spelling}`" for spelling in option.opts)
        default = ""
        if option.default is not None and not isinstance(option.default, bool):
            default = f" Default: `{option.default}`."
        yield f"| {names} | {option.help}{default} |"
    if options:
        yield ""


def _placeholder(argument: Any) -> str:
    name: str = argument.name.upper()
    return f"{name.removesuffix('S')}…" if argument.nargs == -1 else name


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(with_reference(target.read_text()))
