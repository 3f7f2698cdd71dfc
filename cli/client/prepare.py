"""`batchyard prepare`: other input files made of those at hand, on this machine."""

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.client.options import Inputs


def prepare(
    files: Inputs,
    *,
    model: Annotated[str | None, typer.Option(help="The model of every request.")] = None,
    fields: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="NAME=VALUE in every body, the value as JSON or a text; repeatable."
        ),
    ] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, help="Only so many requests of all, at random.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Another one gives another sample.")] = 0,
) -> None:
    """Print the requests of input files as one file, with other fields, or a sample of them."""
    from cli.client.inputs import input_files

    changes = _changes(model, fields or [])
    lines = _lines(input_files(files))
    for place, line in _sampled(lines, sample, seed) if sample else lines:
        sys.stdout.buffer.write(changed(line, changes, place) if changes else line + b"\n")
    sys.stdout.flush()


def changed(line: bytes, changes: dict[str, Any], place: str) -> bytes:
    """The request with these fields in its body. Raises InvalidInputError that names the place."""
    import json

    from shared.errors import InvalidInputError

    try:
        request = json.loads(line)
        body = request["body"]
        for name, value in changes.items():
            *outer, last = name.split(".")
            inner = body
            for one in outer:
                inner = inner.setdefault(one, {})
            inner[last] = value
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidInputError(
            f"{place}: it is no request whose 'body' could be changed. "
            "`batchyard check` says what is wrong."
        ) from error
    try:
        return json.dumps(request, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        # Half of a surrogate pair, which only an escape can say.
        return json.dumps(request).encode() + b"\n"


def _changes(model: str | None, fields: list[str]) -> dict[str, Any]:
    import json

    from shared.errors import InvalidInputError

    changes: dict[str, Any] = {} if model is None else {"model": model}
    for field in fields:
        name, equals, text = field.partition("=")
        if not (name and equals and all(name.split("."))):
            raise InvalidInputError(f"--set {field}: write it as NAME=VALUE, such as max_tokens=9.")
        try:
            changes[name] = json.loads(text)
        except ValueError:
            changes[name] = text
    return changes


def _lines(paths: list[Path]) -> Iterator[tuple[str, bytes]]:
    """Each request with its place, without its line feed."""
    from shared.input.request_lines import BYTE_ORDER_MARK

    for path in paths:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                found = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
                if bare := found.strip():
                    yield f"{path}, line {number}", bare


def _sampled(
    lines: Iterator[tuple[str, bytes]], count: int, seed: int
) -> Iterator[tuple[str, bytes]]:
    """So many of them, in their order, each with the same chance; only these are in memory."""
    random_ = random.Random(seed)
    kept: dict[int, tuple[str, bytes]] = {}
    slots: list[int] = []
    for number, line in enumerate(lines):
        if number < count:
            slots.append(number)
        elif (slot := random_.randrange(number + 1)) < count:
            del kept[slots[slot]]
            slots[slot] = number
        else:
            continue
        kept[number] = line
    yield from (kept[number] for number in sorted(kept))
