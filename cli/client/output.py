"""How the commands print: tables on a terminal, JSON lines in a pipe, notes on standard error."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

Record = Mapping[str, Any]


def is_terminal() -> bool:
    """Whether somebody reads standard output."""
    return sys.stdout.isatty()


def can_ask() -> bool:
    """Whether somebody can be asked a question on standard error."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def note(text: str) -> None:
    """Tell the user something that is no result."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def ask(question: str) -> str:
    """The user's answer. Standard output is left alone: results may go there."""
    sys.stderr.write(f"{question} ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower()


def print_records(
    records: Iterable[Record],
    columns: Sequence[str],
    to_row: Callable[[Record], Sequence[str]],
    *,
    as_json: bool,
) -> None:
    """One record a line: JSON in pipes and if it was asked for, else a table."""
    if as_json or not is_terminal():
        for record in records:
            print_json(record)
        return
    # Only needed here, and slow to import.
    from rich.console import Console

    Console(highlight=False).print(table_of(columns, map(to_row, records)))


def table_of(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> "Table":
    """A table for rich, with the texts as they are."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        # An id is there to be copied, so a narrow terminal takes from the others.
        table.add_column(column, no_wrap=column == "ID")
    for row in rows:
        table.add_row(*map(_plain, row))
    return table


def print_record(record: Record, to_text: Callable[[Record], str], *, as_json: bool) -> None:
    """One record: JSON in pipes and if it was asked for, else as a text."""
    if as_json or not is_terminal():
        print_json(record)
    else:
        sys.stdout.write(f"{to_text(record)}\n")


def print_lines(lines: Iterable[str]) -> None:
    """What stands below a table, on a terminal."""
    for line in lines:
        sys.stdout.write(f"{_printable(line)}\n")


def print_json(record: Record) -> None:
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


def details(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and values, one pair a line."""
    found = [(name, value) for name, value in pairs if value]
    width = max((len(name) for name, _ in found), default=0)
    return "\n".join(f"{name.ljust(width)}  {_printable(value)}" for name, value in found)


def _plain(text: str) -> str:
    """The text without what rich would read as markup, and without control characters."""
    return _printable(text).replace("[", r"\[")


def _printable(text: str) -> str:
    return "".join(sign if sign.isprintable() or sign == "\n" else " " for sign in text)
