"""The result line of a row that has no response. Pure."""

import json

from shared import ids


def unanswered_line(batch_id: str, row: int, custom_id: str | None, error: bytes) -> bytes:
    """The row's line in the error file; `error` is JSON."""
    head = (
        f'{{"id":"{ids.result_id(batch_id, row)}","custom_id":{json.dumps(custom_id)},'
        '"response":null,"error":'
    )
    return b"".join((head.encode(), error, b"}\n"))
