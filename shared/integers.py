"""Integers as JSON Schema means them: 5.0 is one.

Limits stand before the validator, or the schema of an optional field would lack them.
"""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field


def _integral(value: Any) -> Any:
    """The value with 5.0 as 5."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Integer = Annotated[int, BeforeValidator(_integral)]
Priority = Annotated[int, Field(ge=0, le=9), BeforeValidator(_integral)]
#: For at most ten years: longer than any operator keeps answers.
CacheSeconds = Annotated[int, Field(ge=1, le=315_360_000), BeforeValidator(_integral)]
