"""What it costs to see how requests begin, against decoding their lines once.

python -m benchmarks.beginnings
"""

import json
import statistics
import time
from collections.abc import Callable

import msgspec

from shared.input.beginnings import BLOCK_TOKENS, beginning

_ROWS = 2_000
_TURNS = 7
#: Characters of the prompts.
_SIZES = (200, 1_200, 4_000, 20_000)


def main() -> None:
    """Print one line for each size."""
    for size in _SIZES:
        lines = [_line(size, number) for number in range(_ROWS)]
        turns = [
            (_seconds(beginning, lines), _seconds(msgspec.json.decode, lines))
            for _ in range(_TURNS)
        ]
        own, decoding = (
            statistics.median(column) / _ROWS * 1e6 for column in zip(*turns, strict=True)
        )
        tokens = len(beginning(lines[0]).prefix) * BLOCK_TOKENS
        print(
            f"{size:>6} characters: {own:6.1f} µs a row, {own / decoding:4.1f} times as long as "
            f"decoding its line; {tokens} tokens are looked at"
        )


def _line(size: int, number: int) -> bytes:
    rules = ("Answer with one word. " * (size // 22 + 1))[:size]
    messages = [
        {"role": "system", "content": rules},
        {"role": "user", "content": f"Ticket {number}"},
    ]
    body = {"model": "m", "messages": messages, "max_tokens": 16}
    url = "/v1/chat/completions"
    return json.dumps(
        {"custom_id": f"{number}", "method": "POST", "url": url, "body": body}
    ).encode()


def _seconds(verb: Callable[[bytes], object], lines: list[bytes]) -> float:
    began = time.process_time()
    for line in lines:
        verb(line)
    return time.process_time() - began


if __name__ == "__main__":
    main()
