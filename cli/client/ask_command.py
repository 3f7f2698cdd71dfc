"""`batchyard ask`: one live call, whose answer is printed as it comes."""

import sys
from typing import Annotated, Any

import typer

from cli.client.options import Context, connected
from cli.client.output import note


def ask(
    model: Annotated[str, typer.Argument(help="A model that answers live, see `models`.")],
    prompt: Annotated[
        str | None, typer.Argument(help="The question; without it, standard input.")
    ] = None,
    *,
    system: Annotated[str | None, typer.Option(help="What comes before the question.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="The most tokens of the answer.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="0 is the same again.")] = None,
    usage: Annotated[
        bool, typer.Option("--usage", help="Say on standard error what it used.")
    ] = False,
    context: Context = None,
) -> None:
    """Ask a model once, at once; the answer is printed as it comes."""
    from cli.client.event_stream import data_of

    text = sys.stdin.read() if prompt is None else prompt
    system_message = [] if system is None else [{"role": "system", "content": system}]
    body: dict[str, Any] = {
        "model": model,
        "messages": [*system_message, {"role": "user", "content": text}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    options = {"max_tokens": max_tokens, "temperature": temperature}
    body |= {name: value for name, value in options.items() if value is not None}
    used: dict[str, int] = {}
    with (
        connected(context, waits=True) as gateway,
        gateway.open_post("chat/completions", body) as (
            _,
            _,
            chunks,
        ),
    ):
        for data in data_of(chunks):
            used = data.get("usage") or used
            _print(data)
    sys.stdout.write("\n")
    if usage and used:
        note(f"{used['prompt_tokens']:,} tokens in, {used['completion_tokens']:,} out")


def _print(data: dict[str, Any]) -> None:
    """What one event adds to the answer. Raises TransientError if the engine is gone."""
    from shared.errors import TransientError

    if "error" in data:
        raise TransientError(f"The answer ended early: {data['error'].get('message')}")
    for choice in data["choices"]:
        sys.stdout.write(choice["delta"].get("content") or "")
    sys.stdout.flush()
