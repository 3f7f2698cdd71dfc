"""Input files at random, good and bad, and what must hold of the line check for each of them."""

import json
import random
from collections.abc import Callable
from typing import Any

from shared.input.rows import Row
from shared.input.validation import InputCheck, Limits

CHAT = "/v1/chat/completions"
MODELS = {"m": frozenset({CHAT}), "e": frozenset({"/v1/embeddings"})}
#: Small, so that long lines are frequent.
LIMITS = Limits(rows=80, line_bytes=4000, problems=20)
_LINES_A_FILE = 50
_SIGNS = (
    'abc \t"\\/{}[]:,0\u00e9\u00fc\u4e2d\U0001f600\u2028\u2029\u0085\u0000\ufeff\u202e\ufffd\u0301'
)
#: JSON texts that parsers differ about.
_ODD_VALUES = (
    "null", "true", "0", "-0", "1e999", "-1E+400", "1" * 400, "0.1e-999", "01", "+1", "NaN",
    "Infinity", '""', '"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"', '"\\x"', "[]", "{}", "[1,]",
    '{"a":1,}', "'a'", "9223372036854775808", "2147483648", "1.0", "true false", "",
)  # fmt: skip


def check_a_file(dice: random.Random) -> int:
    """Make a file, check it whole and in pieces; returns its number of lines."""
    lines = [_line(dice, number) for number in range(dice.randrange(_LINES_A_FILE) + 1)]
    data = b"\n".join(line for line, _ in lines) + dice.choice((b"", b"\n", b"\r\n", b"\n\n"))
    whole, rows = checked([data])
    cut, same_rows = checked(_pieces(dice, data))
    assert rows == same_rows
    assert whole.problems == cut.problems
    assert (whole.rows, whole.model, whole.problem_count) == (
        cut.rows,
        cut.model,
        cut.problem_count,
    )
    _hold(data, whole, rows)
    wrong = {problem.line for problem in whole.problems}
    if whole.problem_count < LIMITS.problems and None not in wrong:
        taken = {row.number for row in rows}
        for number, (_, is_good) in enumerate(lines, start=1):
            assert not is_good or number in taken, f"line {number} is good and was not taken"
    return len(lines)


def checked(chunks: list[bytes]) -> tuple[InputCheck, list[Row]]:
    """The check after the whole input, and the rows it gave."""
    check = InputCheck(CHAT, MODELS, LIMITS)
    rows = [row for chunk in chunks for row in check.feed(chunk)]
    return check, rows + check.finish()


def _hold(data: bytes, check: InputCheck, rows: list[Row]) -> None:
    ids = set()
    end = 0
    for row in rows:
        assert end <= row.start < row.end <= len(data)
        end = row.end
        raw = data[row.start : row.end].removesuffix(b"\n")
        assert row.line == (raw.removeprefix(b"\xef\xbb\xbf") if row.number == 1 else raw)
        assert data.count(b"\n", 0, row.start) == row.number - 1
        request = json.loads(row.line.decode())
        assert (request["method"], request["url"]) == ("POST", CHAT)
        assert request["body"]["model"] == check.model
        assert "messages" in request["body"]
        # A request that the engine refuses has no output.
        assert 0 <= row.output <= row.tokens
        assert (row.output == 0) == (row.refusal is not None)
        ids.add(request["custom_id"])
    assert len(ids) == len(rows) <= LIMITS.rows
    assert len(check.problems) <= LIMITS.problems + 1
    for problem in check.problems:
        # They go into Redis, events and answers.
        problem.model_dump_json().encode()
        assert len(problem.message) < 400  # names of clients are cut


def _pieces(dice: random.Random, data: bytes) -> list[bytes]:
    if dice.random() < 0.05:  # the slowest way, and the one with the most borders
        return [data[at : at + 1] for at in range(len(data))]
    count = dice.randrange(8)
    edges = [0, *sorted(dice.randrange(len(data) + 1) for _ in range(count)), len(data)]
    return [data[edges[at] : edges[at + 1]] for at in range(len(edges) - 1)]


def _line(dice: random.Random, number: int) -> tuple[bytes, bool]:
    """A line, and whether it is one that has to be taken."""
    good = _request(dice, number)
    make = dice.choice(_MAKERS)
    return (good, True) if make is None else (make(dice, good), False)


def _request(dice: random.Random, number: int) -> bytes:
    body: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": _text(dice)}],
        **{_text(dice) + "?": _text(dice) for _ in range(dice.randrange(3))},
    }
    if dice.random() < 0.5:
        body["max_tokens"] = dice.randrange(1, 2**31)
    # No other line becomes this one by a change or two.
    custom_id = f"{number}-{dice.getrandbits(60):x}{_text(dice)}"
    request = {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}
    return json.dumps(
        dict(dice.sample(list(request.items()), len(request))),
        ensure_ascii=dice.random() < 0.5,
        separators=dice.choice(((",", ":"), (", ", ": "), (" ,\t", " :\r"))),
    ).encode()


def _text(dice: random.Random) -> str:
    return "".join(dice.choices(_SIGNS, k=dice.randrange(12)))


def _with_odd_value(dice: random.Random, good: bytes) -> bytes:
    field = dice.choice(("custom_id", "method", "url", "body", "model", "messages", "stream", "n"))
    return _inserted(good, f'"{field}":{dice.choice(_ODD_VALUES)},'.encode(), dice)


def _with_key_twice(dice: random.Random, good: bytes) -> bytes:
    return _inserted(good, dice.choice((b'"url":"/v1/x",', b'"body":{},', b'"body":1,')), dice)


def _without_field(dice: random.Random, good: bytes) -> bytes:
    request = json.loads(good)
    where = dice.choice((request, request["body"]))
    del where[dice.choice(list(where))]
    return json.dumps(request).encode()


def _deep(dice: random.Random, good: bytes) -> bytes:
    depth = dice.choice((10, 500, 1500, 3000))
    opening, closing = dice.choice(((b"[", b"]"), (b'{"a":', b"}")))
    value = opening * (depth // len(opening)) + closing * dice.choice((0, depth // len(opening)))
    return dice.choice((value, _inserted(good, b'"deep":' + value + b",", dice)))


def _huge(dice: random.Random, good: bytes) -> bytes:
    size = dice.choice((3900, 3999, 4000, 4001, 20_000))
    filling = dice.choice((b" ", b"\x00", b"x", b"\xff"))
    return _inserted(good, b'"huge":"' + filling * size + b'",', dice)


def _mutated(dice: random.Random, good: bytes) -> bytes:
    bad = bytearray(good)
    for _ in range(dice.randrange(1, 4)):
        at = dice.randrange(len(bad))
        # No line feed: this is to stay one line.
        bad[at : at + dice.randrange(3)] = bytes(
            dice.choice((0, 13, 32, 34, 44, 58, 92, 123, 125, 128, 192, 237, 255))
            for _ in range(dice.randrange(3))
        )
        bad = bad or bytearray(b" ")
    return bytes(bad)


def _cut_off(dice: random.Random, good: bytes) -> bytes:
    return good[: dice.randrange(len(good))]


def _with_mark(_: random.Random, good: bytes) -> bytes:
    return b"\xef\xbb\xbf" + good


def _noise(dice: random.Random, _: bytes) -> bytes:
    return dice.randbytes(dice.randrange(200)).replace(b"\n", b"")


def _blank(dice: random.Random, _: bytes) -> bytes:
    return dice.choice((b"", b" ", b"\r", b"\t\t", b"\x0b\x0c", b" " * 5000))


def _twice(_: random.Random, good: bytes) -> bytes:
    return good + good


def _known(_: random.Random, good: bytes) -> bytes:
    return json.dumps({**json.loads(good), "custom_id": "again"}).encode()


def _inserted(good: bytes, what: bytes, dice: random.Random) -> bytes:
    """The request with more fields behind one of its braces."""
    places = [at for at, sign in enumerate(good) if sign == ord("{")]
    at = dice.choice(places) + 1
    return good[:at] + what + good[at:]


#: None makes no change; most lines of a file are good, as they are in real ones.
_MAKERS: tuple[Callable[[random.Random, bytes], bytes] | None, ...] = (
    *([None] * 12),
    _with_odd_value, _with_odd_value, _with_key_twice, _without_field, _deep, _huge, _mutated,
    _mutated, _cut_off, _with_mark, _noise, _blank, _twice, _known,
)  # fmt: skip
