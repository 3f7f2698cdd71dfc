"""docs/configuration.md against the classes that it describes.

`python -m tests.architecture.test_docs_configuration` writes its table of settings.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from dispatcher.settings import DispatcherSettings
from gateway.settings import GatewaySettings
from shared.catalog import LiveCalls, Model, Pool
from shared.catalog_file import load_catalog
from shared.openai.media import MediaLimits
from shared.openai.row_limits import RowLimits
from shared.settings import SharedSettings, StoreSettings
from shared.starting import Starting
from worker.settings import WorkerSettings

PAGE = Path(__file__).parents[2] / "docs/configuration.md"
_GENERATED = re.compile(r"(<!-- generated: settings -->\n).*?(<!-- end -->)", re.DOTALL)
_READERS: dict[str, type[StoreSettings]] = {
    "all": StoreSettings,
    "gateway, dispatcher": SharedSettings,
    "gateway": GatewaySettings,
    "dispatcher": DispatcherSettings,
    "lane job": WorkerSettings,
}
_BASES = (StoreSettings, SharedSettings)


def test_the_settings_table_is_what_the_classes_say() -> None:
    found = _GENERATED.search(PAGE.read_text())

    assert found is not None
    assert _written() == PAGE.read_text(), (
        "run python -m tests.architecture.test_docs_configuration"
    )


def test_every_setting_has_a_meaning() -> None:
    assert [row for row in _rows() if row.endswith("|  |")] == []


@pytest.mark.parametrize(
    ("heading", "shape"),
    [
        ("A pool:", Pool),
        ("A model:", Model),
        ("A model's `live`, all of them optional:", LiveCalls),
        ("A model's `start`, all of them optional:", Starting),
        ("A model's `row_limits`, all of them optional:", RowLimits),
        ("A model's `media_limits`, all of them optional:", MediaLimits),
    ],
)
def test_each_field_of_the_catalog_has_a_row(heading: str, shape: type[BaseModel]) -> None:
    table = PAGE.read_text().partition(heading)[2].strip().partition("\n\n")[0]

    documented = re.findall(r"^\| `(\w+)`", table, flags=re.MULTILINE)

    assert list(shape.model_fields) == documented


def test_the_example_catalog_can_be_loaded(tmp_path: Path) -> None:
    found = re.search(r"```yaml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert found is not None
    (tmp_path / "catalog.yaml").write_text(found[1])

    catalog = load_catalog(tmp_path / "catalog.yaml")

    assert {"support-chat", "minilm"} == set(catalog.models)


def _written() -> str:
    table = "\n".join(["| Variable | Default | Read by | Means |", "|---|---|---|---|", *_rows()])
    return _GENERATED.sub(lambda part: f"{part[1]}\n{table}\n\n{part[2]}", PAGE.read_text())


def _rows() -> Iterator[str]:
    """One row per variable; the first class that has it says what it means."""
    texts: dict[str, str] = {}
    readers: dict[str, list[str]] = {}
    for reader, settings in _READERS.items():
        meanings = _comments(settings)
        for name, field in settings.model_fields.items():
            if any(name in base.model_fields for base in settings.__mro__[1:] if base in _BASES):
                continue
            readers.setdefault(name, []).append(reader)
            meaning = field.description or meanings.get(name, "")
            texts[name] = texts.get(name) or f"{_default(field)} | {{readers}} | {meaning}"
    for name, text in texts.items():
        row = text.replace("{readers}", ", ".join(readers[name]))
        yield f"| `BATCHYARD_{name.upper()}` | {row} |"


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, tuple | frozenset):
        return f"`{list(value)}`".replace("'", '"')
    return f"`{value}`"


def _comments(settings: type[StoreSettings]) -> dict[str, str]:
    """The comment `#:` above a field."""
    found = re.findall(r"^    #: (.*)\n    (\w+):", inspect.getsource(settings), flags=re.MULTILINE)
    return {name: comment[0].lower() + comment[1:].rstrip(".") for comment, name in found}


if __name__ == "__main__":
    PAGE.write_text(_written())
