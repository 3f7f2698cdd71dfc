"""`batchyard context`: the gateways that you use, by name."""

import os
import sys
from typing import Annotated

import typer

from cli.client.options import AsJson
from cli.client.output import can_ask, note, print_records

app = typer.Typer(no_args_is_help=True, help="Name the gateways that you use, with their keys.")

Name = Annotated[str, typer.Argument(help="The context's name.")]


@app.command()
def add(
    name: Name,
    url: Annotated[str, typer.Option(help="The gateway's base URL, such as https://HOST/v1.")],
    *,
    key_env: Annotated[
        str | None,
        typer.Option(help="Take the key from this variable, not from standard input."),
    ] = None,
) -> None:
    """Add or replace a context, and use it if it is the first; asks for the key."""
    from cli.client.contexts import Target, changed_contexts, checked_url, config_file

    target = Target(name, checked_url(url, "--url"), _key(key_env))
    file = config_file()
    with changed_contexts(file) as contexts:
        contexts.targets[name] = target
        contexts.current = contexts.current or name
    note(f"Added {name} to {file}. The current context is {contexts.current}.")


@app.command()
def use(name: Name) -> None:
    """Make a context the current one."""
    from cli.client.contexts import changed_contexts, config_file, find

    with changed_contexts(config_file()) as contexts:
        contexts.current = find(contexts, name).name
    note(f"The current context is {name}.")


@app.command("ls")
def list_contexts(*, as_json: AsJson = False) -> None:
    """List the contexts without their keys."""
    from cli.client.contexts import config_file, read_contexts

    contexts = read_contexts(config_file())
    print_records(
        [
            {"name": name, "url": target.url, "current": name == contexts.current}
            for name, target in sorted(contexts.targets.items())
        ],
        ("", "NAME", "URL"),
        lambda one: ("*" if one["current"] else "", one["name"], one["url"]),
        as_json=as_json,
    )


@app.command()
def rm(name: Name) -> None:
    """Remove a context and its key from this machine; the key stays valid."""
    from cli.client.contexts import changed_contexts, config_file, find

    with changed_contexts(config_file()) as contexts:
        del contexts.targets[find(contexts, name).name]
        if contexts.current == name:
            contexts.current = None
    note(f"Removed {name}." + ("" if contexts.current else " No context is the current one now."))


def _key(variable: str | None) -> str:
    """The key, from where it is neither shown nor kept in a shell's history."""
    from cli.client.contexts import is_key
    from shared.errors import InvalidInputError

    if variable is not None:
        key = os.environ.get(variable, "")
    elif can_ask():
        key = typer.prompt("API key", hide_input=True, err=True)
    else:
        key = sys.stdin.readline()
    key = key.strip()
    if not is_key(key):
        raise InvalidInputError(
            "There is no key. Type it when you are asked, send it to standard input, or name a "
            "variable that holds it: --key-env OPENAI_API_KEY"
        )
    return key
