import subprocess
import sys

#: What takes long to import, and what only other commands need.
_SLOW = ("httpx", "openai", "pydantic_settings", "ray", "redis", "rich.table", "shared.input")
_PROGRAM = f"""
import sys
from cli.__main__ import app
from typer.main import get_command
get_command(app)
print([name for name in {_SLOW!r} if name in sys.modules])
"""


def test_the_command_imports_nothing_slow_before_it_is_needed() -> None:
    found = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True
    )

    assert found.stdout.strip() == "[]"
