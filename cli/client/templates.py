"""Template files: an endpoint, and what makes requests of a table's rows, in YAML or JSON."""

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


def read_yaml(path: Path, option: str = "") -> Any:
    """What a file in YAML or JSON says. Raises InvalidInputError that names it."""
    import yaml

    try:
        return _with_on(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InvalidInputError(f"{option}{path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{option}{path}: it is no UTF-8 text.") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or "it is no YAML"
        raise InvalidInputError(f"{option}{path}{where}: {reason}.") from error


def _with_on(value: Any) -> Any:
    """The value with the name `on` of fields, which YAML 1.1 takes for true."""
    match value:
        case dict():
            return {"on" if name is True else name: _with_on(one) for name, one in value.items()}
        case list():
            return [_with_on(one) for one in value]
        case _:
            return value
