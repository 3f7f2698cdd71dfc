from pathlib import Path

import pytest

from worker.imports import import_retried

_MODULE = """\
from pathlib import Path

tried = Path(__file__).with_suffix(".tried")
if not tried.exists():
    tried.touch()
    raise {error}("is already registered")
"""


def _write(folder: Path, name: str, error: str) -> None:
    (folder / f"{name}.py").write_text(_MODULE.format(error=error))


def test_a_module_that_another_process_registers_is_imported_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path, "registers_itself", "ValueError")
    monkeypatch.syspath_prepend(str(tmp_path))

    assert import_retried("registers_itself").tried.exists()


def test_a_module_that_is_broken_is_not_imported_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path, "is_broken", "ImportError")
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(ImportError, match="already"):
        import_retried("is_broken")
