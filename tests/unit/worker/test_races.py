import importlib
from pathlib import Path

import pytest

from worker.races import retry_lost

_MODULE = """\
from pathlib import Path

tried = Path(__file__).with_suffix(".tried")
if not tried.exists():
    tried.touch()
    raise {error}("is already registered")
"""


def test_a_module_that_another_process_registers_is_imported_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "registers_itself.py").write_text(_MODULE.format(error="ValueError"))
    monkeypatch.syspath_prepend(str(tmp_path))

    assert retry_lost(lambda: importlib.import_module("registers_itself")).tried.exists()


def test_a_module_that_is_broken_is_not_imported_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "is_broken.py").write_text(_MODULE.format(error="ImportError"))
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(ImportError, match="already"):
        retry_lost(lambda: importlib.import_module("is_broken"))
