"""The result line of a row that was answered. Pure."""

import json

from shared import ids

#: How a line ends after the answer, and how one that was taken from the cache does.
_END, _CACHED_END = b'},"error":null}', b'},"error":null,"cached":true}'
#: The first occurrence is ours: a quote in a `custom_id` is escaped.
_BODY = b'"body":'


def answered_line(
    batch_id: str,
    row: int,
    custom_id: str | None,
    status: int,
    body: bytes,
    *,
    is_cached: bool = False,
) -> bytes:
    """One line of an output or error file. It begins with its id, which ends in the row number."""
    # ASCII only, because some clients split lines on U+2028.
    head = (
        f'{{"id":"{ids.result_id(batch_id, row)}","custom_id":{json.dumps(custom_id)},'
        f'"response":{{"status_code":{status},"request_id":"{ids.row_request_id(batch_id, row)}",'
        '"body":'
    )
    return b"".join((head.encode(), body, _CACHED_END if is_cached else _END, b"\n"))


def place_of_body(line: bytes) -> tuple[int, int] | None:
    """Where in a line, without its line feed, the answer begins and ends.

    None for a line that has none, or one that was taken from the cache itself.
    """
    start = line.find(_BODY) + len(_BODY)
    if start < len(_BODY) or not line.endswith(_END):
        return None
    return start, len(line) - len(_END)
