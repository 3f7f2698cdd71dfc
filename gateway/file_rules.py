"""Rules for a file's name, purpose and expiry, and its name in a download. Pure."""

import json
import re
from collections.abc import Mapping
from typing import Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field

from gateway.fields import missing, parsed, require_one_of
from shared.adapters import PURPOSE as ADAPTER_PURPOSE
from shared.errors import InvalidInputError
from shared.integers import Integer

PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
MAX_NAME_CHARACTERS = 512
#: The names of batch inputs, as a JSON schema pattern: ending in .jsonl, or without an extension.
BATCH_NAME_PATTERN = r"^([\s\S]*/)?([^./]*|\.[^./]*|[^/]*\.|[^/]*\.[jJ][sS][oO][nN][lL])/*$"
#: What a form says besides its file. `expires_after` comes as one JSON part, in the SDKs' spelling
#: or in that of Azure's examples.
FORM_FIELDS = (
    "purpose",
    "expires_after",
    *(f"expires_after[{name}]" for name in ("anchor", "seconds")),
    *(f"expires_after.{name}" for name in ("anchor", "seconds")),
)


class ExpiresAfter(BaseModel):
    """How long a file is kept, counted from its creation."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    anchor: Literal["created_at"]
    seconds: Integer = Field(ge=3600, le=2_592_000)


def require_purpose(purpose: str | None, filename: str, param: str) -> str:
    """The purpose of a file, if there is one of this name and the file's name suits it.

    Else raises InvalidInputError. `param` is the field that the file's name comes from.
    """
    if not purpose:
        raise missing("purpose")
    require_one_of(purpose, (*PURPOSES, ADAPTER_PURPOSE), "purpose")
    if len(filename) > MAX_NAME_CHARACTERS:
        raise InvalidInputError(
            f"Invalid '{param}': the file name is too long. Expected at most "
            f"{MAX_NAME_CHARACTERS} characters, but got {len(filename)}.",
            param=param,
            code="string_above_max_length",
        )
    if purpose == "batch" and re.search(BATCH_NAME_PATTERN, filename) is None:
        raise InvalidInputError("Invalid file format for Batch API. Must be .jsonl")
    return purpose


def expires_after(fields: Mapping[str, str]) -> ExpiresAfter | None:
    """What a form says of the file's expiry, in any spelling. Raises InvalidInputError."""
    within = ("expires_after",)
    if "expires_after" in fields:
        return parsed(fields["expires_after"].encode(), ExpiresAfter, within=within)
    found: dict[str, str | int] = {}
    for name in ("anchor", "seconds"):
        for spelling in (f"expires_after[{name}]", f"expires_after.{name}"):
            if spelling in fields:
                text = fields[spelling]
                found[name] = int(text) if name == "seconds" and _is_number(text) else text
    if not found:
        return None
    return parsed(json.dumps(found).encode(), ExpiresAfter, within=within)


def seconds_kept(expiry: ExpiresAfter | None, purpose: str, *, batch_seconds: int) -> int | None:
    """How long a file is kept; None means forever. Only batch inputs expire by default."""
    if expiry:
        return expiry.seconds
    return batch_seconds if purpose == "batch" else None


def disposition(filename: str) -> str:
    """The header that names a download, whatever characters the name has."""
    plain = "".join(
        sign if sign.isascii() and sign.isprintable() and sign not in '"\\' else "_"
        for sign in filename
    )
    extended = "" if plain == filename else f"; filename*=UTF-8''{quote(filename, safe='')}"
    return f'attachment; filename="{plain}"{extended}'


def _is_number(text: str) -> bool:
    return re.fullmatch("-?[0-9]{1,18}", text) is not None
