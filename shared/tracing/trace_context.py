"""W3C's trace context as text, and the place of a batch's own span in it. Pure.

The id of a batch's span follows from the batch's id. So every process can put its spans below it,
long before the batch has ended and the span itself is sent.
"""

import hashlib
import re

# Version 00, ids that are not all zeros.
_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})")
_MAX_TRACESTATE = 512
_SPAN_ID_DIGITS = 16


def usable(parent: object, state: object) -> tuple[str, str]:
    """`traceparent` and `tracestate` of a caller, empty where W3C's rules say to ignore them."""
    if not isinstance(parent, str) or not _TRACEPARENT.fullmatch(parent):
        return "", ""
    is_usable = isinstance(state, str) and len(state) <= _MAX_TRACESTATE and state.isprintable()
    return parent, str(state) if is_usable else ""


def trace_id(traceparent: str) -> str:
    """The id of the trace, in hexadecimal; empty if there is none."""
    found = _TRACEPARENT.fullmatch(traceparent)
    return found[1] if found else ""


def of_batch(batch_id: str, traceparent: str) -> str:
    """The `traceparent` of the batch's own span, for the spans below it.

    `traceparent` is what the batch's record has; of a batch without one, this is empty, too.
    """
    found = _TRACEPARENT.fullmatch(traceparent)
    return f"00-{found[1]}-{batch_span_id(batch_id)}-{found[2]}" if found else ""


def batch_span_id(batch_id: str) -> str:
    """The id of the batch's own span, in hexadecimal."""
    return hashlib.sha256(batch_id.encode()).hexdigest()[:_SPAN_ID_DIGITS]
