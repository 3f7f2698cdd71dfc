"""docs/bus.md against the code: it has every field of a submission and every error code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from shared.bus.messages import (
    FileInput,
    InlineInput,
    InlineRequest,
    OpenInput,
    S3Input,
    Submission,
)
from shared.openai.endpoints import ENDPOINTS

_ROOT = Path(__file__).parents[2]
_PAGE = (_ROOT / "docs/bus.md").read_text()
#: What creates a reason, with the code as its first argument.
_MAKERS = {"Reason", "_refused"}


def test_every_field_of_a_submission_has_a_row() -> None:
    fields = {field.alias or name for name, field in Submission.model_fields.items()}

    assert set(_rows("| Field | Default | Means |")) == fields


def test_every_endpoint_is_named() -> None:
    row = _rows("| Field | Default | Means |")["endpoint"]

    assert set(re.findall(r"`(/[a-z0-9/]+)`", row)) == set(ENDPOINTS)


def test_every_form_of_input_names_its_fields() -> None:
    rows = _rows("| `input.kind` | Fields | For |")

    shapes: dict[str, tuple[type[BaseModel], ...]] = {
        "inline": (InlineInput, InlineRequest),
        "s3": (S3Input,),
        "file": (FileInput,),
    }
    shapes["open"] = (OpenInput,)
    for kind, parts in shapes.items():
        fields = {name for part in parts for name in part.model_fields} - {"kind"}
        assert fields <= set(re.findall(r"`(\w+)`", rows[kind])), kind
    assert rows.keys() == shapes.keys()


def test_every_error_code_says_what_to_do() -> None:
    assert set(_rows("| Code | Means | Do |")) == set(_codes())


def _rows(head: str) -> dict[str, str]:
    """The rows of a table by the name that each begins with."""
    table = _PAGE.partition(f"\n{head}\n")[2].partition("\n\n")[0]
    return {found[1]: found[0] for found in re.finditer(r"^\| `(\w+)` \|.*$", table, re.MULTILINE)}


def _codes() -> Iterator[str]:
    for file in [*(_ROOT / "dispatcher").rglob("*.py"), *(_ROOT / "shared/bus").rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(
                    func=ast.Name(id=maker), args=[ast.Constant(value=str(code)), *_]
                ) if maker in _MAKERS:
                    yield code
                case _:
                    pass
