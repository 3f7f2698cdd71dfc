import io
import sys

import pytest

from cli.client.progress import Sending


class _OutStream(io.StringIO):
    """As the one that a notebook's kernel has for standard error."""


_OutStream.__module__ = "ipykernel.iostream"


def test_in_a_notebook_one_line_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = _OutStream()
    monkeypatch.setattr(sys, "stderr", shown)

    with Sending("file", 100) as sending:
        sending.show(100)
        sending.show(5)

    assert shown.getvalue() == "\rfile, 100 %\rfile, 5 %  \n"


def test_what_is_not_shown_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = _OutStream()
    monkeypatch.setattr(sys, "stderr", shown)

    with Sending("file", 100, is_shown=False) as sending:
        sending.show(100)

    assert shown.getvalue() == ""
