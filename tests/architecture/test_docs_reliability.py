"""docs/reliability.md against the settings, the constants and the checker."""

import ast
import re
from pathlib import Path

from dispatcher.settings import DispatcherSettings
from gateway.settings import GatewaySettings
from worker.settings import WorkerSettings

_ROOT = Path(__file__).parents[2]
_PAGE = (_ROOT / "docs/reliability.md").read_text()
_CHECKER, *_OTHERS = (
    (_ROOT / f"tests/chaos/{name}.py").read_text()
    for name in ("checker", "live_check", "pipeline_check")
)


def test_each_window_is_the_default_of_what_sets_it() -> None:
    rows = re.findall(r"^\| .* \| ([\d.]+) s \| `(\S+)` \|$", _PAGE, flags=re.MULTILINE)

    assert len(rows) > 5
    assert [(name, float(seconds)) for seconds, name in rows] == [
        (name, _default(name)) for _, name in rows
    ]


def test_each_kind_of_violation_is_named() -> None:
    kinds = set(re.findall(r'(?:Violation\(|kind = )"(\w+)"', _CHECKER))
    kinds |= set(re.findall(r'"(\w+)" if lines_of', _CHECKER))
    kinds |= set(re.findall(r'yield "(\w+)"', "".join(_OTHERS)))
    # What the harness itself did not expect is not a promise of the product.
    named = set(re.findall(r"`(\w+)`", _PAGE))

    assert len(kinds) > 15
    assert kinds - named == {"surprise"}


def _default(name: str) -> float:
    if name.startswith("BATCHYARD_"):
        field = name.removeprefix("BATCHYARD_").lower()
        for settings in (GatewaySettings, DispatcherSettings, WorkerSettings):
            if field in settings.model_fields:
                return float(settings.model_fields[field].default)
    file, _, constant = name.partition(":")
    for node in ast.parse((_ROOT / file).read_text()).body:
        match node:
            case ast.Assign(
                targets=[ast.Name(id=found)], value=ast.Constant(value=int() | float() as value)
            ) if found == constant:
                return float(value)
            case _:
                pass
    raise AssertionError(f"{name} is nowhere")
