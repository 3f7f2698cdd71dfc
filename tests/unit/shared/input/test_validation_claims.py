"""What holds of the line check for every input that hypothesis thinks of; see also tests/fuzz."""

import json
from itertools import pairwise
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.input.rows import Row
from shared.input.validation import InputCheck, Limits

CHAT = "/v1/chat/completions"
MODELS = {"m": frozenset({CHAT}), "e": frozenset({"/v1/embeddings"})}
LIMITS = Limits(rows=12, line_bytes=600, problems=5)
#: No time limit: a busy machine is not the code's fault.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

numbers = st.integers() | st.floats() | st.sampled_from([10**400, -(10**400), 2**31, 2**63])
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(st.characters(codec=None), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
requests = st.fixed_dictionaries(
    {
        "custom_id": st.sampled_from(["a", "b", "\x00", "x" * 100]) | values,
        "method": st.just("POST") | values,
        "url": st.just(CHAT) | values,
        "body": st.fixed_dictionaries(
            {"model": st.sampled_from(["m", "e", "z"]) | values, "messages": values},
            optional=dict.fromkeys(("stream", "n", "max_tokens", "�"), values),
        )
        | values,
    }
)
good = st.builds(
    lambda number, text: json.dumps(
        {
            "custom_id": f"{number}-{text}",
            "method": "POST",
            "url": CHAT,
            "body": {"model": "m", "messages": [{"role": "user", "content": text}]},
        }
    ).encode(),
    st.integers(0, 10**6),
    st.text(max_size=20),
)
lines = st.one_of(
    good,
    requests.map(lambda request: json.dumps(request).encode()),
    st.binary(max_size=80),
    st.sampled_from([b"", b" ", b"\xef\xbb\xbf", b"[" * 590, b'{"a":' * 118, b"x" * 700, b"\r"]),
)
files = st.lists(lines, max_size=20).map(b"\n".join)


@unhurried
@given(data=files, cuts=st.lists(st.integers(0, 4000), max_size=12))
def test_the_answer_is_the_same_however_the_input_is_cut(data: bytes, cuts: list[int]) -> None:
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})

    whole, rows = _checked([data])
    cut, same_rows = _checked([data[start:end] for start, end in pairwise(edges)])

    assert rows == same_rows
    assert (whole.problems, whole.problem_count) == (cut.problems, cut.problem_count)
    assert (whole.rows, whole.model) == (cut.rows, cut.model)


@unhurried
@given(data=files)
def test_a_row_is_a_request_that_every_parser_reads(data: bytes) -> None:
    check, rows = _checked([data])

    for row in rows:
        request: dict[str, Any] = json.loads(row.line.decode())
        assert (request["method"], request["url"], request["body"]["model"]) == (
            "POST",
            CHAT,
            check.model,
        )
        assert data[row.start : row.end].strip().endswith(row.line.strip())
    assert len({json.loads(row.line)["custom_id"] for row in rows}) == len(rows)


@unhurried
@given(data=files)
def test_problems_are_few_short_and_text(data: bytes) -> None:
    check, rows = _checked([data])

    assert len(check.problems) <= LIMITS.problems + 1
    assert bool(rows) or bool(check.problems)
    for problem in check.problems:
        problem.model_dump_json().encode()
        assert len(problem.message) < 400


def _checked(chunks: list[bytes]) -> tuple[InputCheck, list[Row]]:
    check = InputCheck(CHAT, MODELS, LIMITS)
    rows = [row for chunk in chunks for row in check.feed(chunk)]
    return check, rows + check.finish()
