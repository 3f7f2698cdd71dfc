"""Template files: an endpoint, and what makes requests of a table's rows, in YAML or JSON."""

import json
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from shared.errors import InvalidInputError

_ENDPOINT = "/v1/chat/completions"
#: What the command says of the input itself.
_OWN = ("file_id", "objects")


class RowTemplate(NamedTuple):
    """The endpoint of the requests, and `input` and `output` of their batch but for its file."""

    endpoint: str
    input: dict[str, Any]
    output: Any = None

    def with_fields(self, fields: dict[str, Any]) -> "RowTemplate":
        """The same with these fields of the request's body, in place of its own."""
        return self._replace(input={**self.input, "template": {**self.input["template"], **fields}})


def template_of(
    path: Path | None, model: str | None = None, fields: Sequence[str] | None = None
) -> RowTemplate | None:
    """What a command's options say of a template. Raises InvalidInputError."""
    if path is None:
        if model or fields:
            raise InvalidInputError(
                "--model and --set change a --template. Without one, the files have whole requests."
            )
        return None
    return read_template(path).with_fields(
        dict(map(_field, fields or ())) | ({"model": model} if model else {})
    )


def read_template(path: Path) -> RowTemplate:
    """The template file. Raises InvalidInputError that names it."""
    found = read_yaml(path, "--template ")
    if not isinstance(found, dict) or not isinstance(found.get("template"), dict):
        raise InvalidInputError(
            f"--template {path}: there is no 'template'. Write the body of a request below it:\n"
            "  endpoint: /v1/chat/completions\n"
            "  template:\n"
            "    model: NAME\n"
            '    messages: [{role: user, content: "{{ column }}"}]'
        )
    for name in _OWN:
        if name in found:
            raise InvalidInputError(
                f"--template {path}: it must not have '{name}', because the command names files."
            )
    endpoint = found.pop("endpoint", _ENDPOINT)
    if not isinstance(endpoint, str):
        raise InvalidInputError(f"--template {path}: 'endpoint' must be a text.")
    output = found.pop("output", None)
    return RowTemplate(endpoint, {str(name): value for name, value in found.items()}, output)


def _field(pair: str) -> tuple[str, Any]:
    """`NAME=VALUE`, whose value is JSON, or else a text as it stands."""
    name, equals, value = pair.partition("=")
    if not name or not equals:
        raise InvalidInputError(f"--set {pair}: write NAME=VALUE.")
    try:
        return name, json.loads(value, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return name, value


def _no_json(constant: str) -> Any:
    """Python would take NaN and Infinity, which JSON has not."""
    raise ValueError(constant)


def read_yaml(path: Path, option: str = "") -> Any:
    """What a file in YAML or JSON says. Raises InvalidInputError that names it."""
    import yaml

    try:
        return _as_json(yaml.safe_load(path.read_text(encoding="utf-8")), ())
    except OSError as error:
        raise InvalidInputError(f"{option}{path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{option}{path}: it is no UTF-8 text.") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or "it is no YAML"
        raise InvalidInputError(f"{option}{path}{where}: {reason}.") from error
    except RecursionError as error:
        raise InvalidInputError(f"{option}{path}: it is nested too deeply.") from error
    except ValueError as error:
        raise InvalidInputError(
            f"{option}{path}: a value looks like a date or a number, and is none. Write a text in "
            "quotes."
        ) from error
    except _NotJsonError as error:
        raise InvalidInputError(f"{option}{path}: {error} Write a text in quotes.") from error


class _NotJsonError(Exception):
    """YAML has more kinds of values than JSON. The text says where one is, and its kind."""


def _as_json(value: Any, place: tuple[str, ...]) -> Any:
    """The value with the name `on` of fields, which YAML 1.1 takes for true."""
    match value:
        case dict():
            return {
                "on" if name is True else _as_json(name, place): _as_json(one, (*place, str(name)))
                for name, one in value.items()
            }
        case list():
            return [_as_json(one, (*place, str(number))) for number, one in enumerate(value)]
        case None | str() | int():
            return value
        case float() if isfinite(value):
            return value
        case _:
            kind = value if isinstance(value, float) else type(value).__name__
            raise _NotJsonError(f"{'.'.join(place)} is YAML's {kind}, which JSON has not.")
