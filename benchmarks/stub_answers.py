"""The answers of an engine that answers at once. Pure.

Every answer begins with the number that its row's text begins with, so that a whole output can be
verified row by row.
"""

import re

FLOATS = 384
_TEXT = re.compile(rb'"(content|input)": ?"(\d+) ')
_USAGE = b'"usage":{"prompt_tokens":40,"completion_tokens":%d,"total_tokens":%d}}'
_CHAT = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1795000000,"model":"m","choices":['
    b'{"index":0,"finish_reason":"length","message":{"role":"assistant","content":"%d one two '
    b'three"}}],' + _USAGE % (4, 44)
)
_EMBEDDING = (
    b'{"id":"embd-1","object":"list","created":1795000000,"model":"m","data":[{"index":0,"object":'
    b'"embedding","embedding":[%d,'
    + ",".join(f"{number / 7919:.17f}" for number in range(1, FLOATS)).encode()
    + b"]}],"
    + _USAGE % (0, 40)
)


def is_answer(number: int, body: object) -> bool:
    """Whether this is the answer to the row whose text begins with that number."""
    match body:
        case {"choices": [{"message": {"content": str(text)}}]}:
            return text == f"{number} one two three"
        case {"data": [{"embedding": [first, *rest]}]}:
            return bool(first == number and len(rest) == FLOATS - 1)
        case _:
            return False


def answer_to(line: bytes) -> bytes:
    """The body of the answer to a request line. Raises ValueError for a text without a number."""
    if (found := _TEXT.search(line)) is None:
        raise ValueError("This text does not begin with a number.")
    kind, number = found[1], int(found[2])
    return (_CHAT if kind == b"content" else _EMBEDDING) % number
