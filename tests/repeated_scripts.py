"""Scripts of Redis that run twice, as where the first answer is lost and the call repeated."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shared.state.scripts import Scripts


@contextmanager
def repeating(script: str) -> Iterator[None]:
    """Run the script twice each time; the second answer counts."""
    run = Scripts.run

    async def run_twice(scripts: Scripts, name: str, *arguments: str | bytes | float) -> Any:
        if name == script:
            await run(scripts, name, *arguments)
        return await run(scripts, name, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scripts, "run", run_twice)
        yield
