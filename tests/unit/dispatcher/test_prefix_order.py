import json
import random

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.prefix_order import PrefixSample, prefix_order
from shared.input.beginnings import BLOCK_TOKENS

QUEUE_ROWS = 16
_BLOCKS = 8
#: What a row has besides its prefix, and its answer.
_OWN_TOKENS = 64


def shuffled(prefixes: int, rows: int) -> list[tuple[int, ...]]:
    """So many rows of each prefix, in any order."""
    found = [tuple(range(100 * one, 100 * one + _BLOCKS)) for one in range(prefixes)] * rows
    random.Random(1).shuffle(found)
    return found


def order(prefixes: list[tuple[int, ...]]) -> list[int] | None:
    tokens = sum(len(prefix) * BLOCK_TOKENS + _OWN_TOKENS for prefix in prefixes)
    return prefix_order(prefixes, tokens=tokens, queue_rows=QUEUE_ROWS)


def test_rows_of_one_prefix_follow_each_other() -> None:
    prefixes = shuffled(prefixes=20, rows=10)

    found = order(prefixes)

    assert found is not None
    assert sorted(found) == list(range(200))
    firsts = [prefixes[position][0] for position in found]
    assert firsts == sorted(firsts)


def test_what_fits_into_the_engines_queue_keeps_its_order() -> None:
    assert order(shuffled(prefixes=4, rows=QUEUE_ROWS // 4)) is None


def test_one_system_prompt_for_all_rows_changes_nothing() -> None:
    assert order(shuffled(prefixes=1, rows=500)) is None


def test_prefixes_that_stand_together_keep_their_order() -> None:
    assert order(sorted(shuffled(prefixes=20, rows=QUEUE_ROWS))) is None


def test_prompts_of_their_own_keep_their_order() -> None:
    assert order(shuffled(prefixes=500, rows=1)) is None


@given(st.lists(st.lists(st.integers(0, 3), max_size=4).map(tuple), max_size=80))
def test_any_order_has_every_row_once(prefixes: list[tuple[int, ...]]) -> None:
    found = prefix_order(prefixes, tokens=1, queue_rows=4)

    assert found is None or sorted(found) == list(range(len(prefixes)))


SAMPLED_QUEUE_ROWS = 256


def line(prefix: int) -> bytes:
    text = f"{prefix:05d} " * 400
    body = {"messages": [{"role": "user", "content": text}]}
    return json.dumps({"custom_id": "a", "url": "/v1/chat/completions", "body": body}).encode()


def repeats(prefixes: list[int], *, part: float = 1 / 8) -> bool:
    """Whether a sample of that part sees repeats from afar."""
    sample, dice = PrefixSample(queue_rows=SAMPLED_QUEUE_ROWS), random.Random(3)
    for number, prefix in enumerate(prefixes):
        if dice.random() < part:
            sample.add(number, 700, line(prefix))
    return sample.repeats


def test_a_sample_sees_prefixes_that_repeat_from_afar() -> None:
    prefixes = list(range(200)) * 10
    random.Random(1).shuffle(prefixes)

    assert repeats(prefixes)
    # Two passes over the same documents.
    assert repeats([*range(1000), *range(1000)])


def test_a_sample_sees_nothing_in_rows_of_their_own_or_of_one_prompt() -> None:
    assert not repeats(list(range(1000)))
    assert not repeats([7] * 1000)
    assert not repeats(list(range(SAMPLED_QUEUE_ROWS // 2)) * 2, part=1)
