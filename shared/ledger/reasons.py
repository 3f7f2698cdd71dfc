"""Why a batch failed: its commit in S3 has every reason, and Redis the first ones. Pure."""

from collections.abc import Mapping

import msgspec

#: What the reasons of one batch may take of Redis, which keeps them as long as the batch.
_MAX_BYTES = 4096
#: The field that says how many reasons only the commit has.
LEFT_OUT = "reasons_left_out"


def shortened(fields: Mapping[str, str | int]) -> dict[str, str | int]:
    """The fields of an end as Redis keeps them: with as many reasons as fit, and at least one."""
    text = str(fields.get("errors", "[]"))
    if len(text.encode()) <= _MAX_BYTES:
        return dict(fields)
    reasons = msgspec.json.decode(text, type=list[msgspec.Raw])
    kept, size = 1, len(reasons[0])
    while kept < len(reasons) and size + len(reasons[kept]) <= _MAX_BYTES:
        size += len(reasons[kept])
        kept += 1
    errors = msgspec.json.encode(reasons[:kept]).decode()
    return {**fields, "errors": errors, LEFT_OUT: len(reasons) - kept}
