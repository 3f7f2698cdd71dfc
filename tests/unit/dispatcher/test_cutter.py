"""How spans become slices, whatever the order of their rows."""

import json
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.cutter import Cutter
from dispatcher.row_span import RowSpan, SpanLimits
from shared.catalog import Catalog
from shared.input.request_lines import split
from shared.input.validation import InputCheck
from shared.lane_shares import LaneShares
from shared.slices import Slice
from shared.slicing import SliceLimits

SEATS = 2
CATALOG = Catalog.model_validate(
    {
        "pools": {"gpu": {"resources": {"CPU": 1}}},
        "models": {
            name: {"pools": ["gpu"], "engine": {"max_num_seqs": SEATS, **engine}}
            for name, engine in {"m": {}, "other": {}, "vectors": {"runner": "pooling"}}.items()
        },
    }
)


def line(number: int, model: str, prefix: int) -> bytes:
    body: dict[str, Any] = {"model": model}
    if model == "vectors":
        url, body["input"] = "/v1/embeddings", f"{prefix}" * 600
    else:
        url = "/v1/chat/completions"
        body["messages"] = [{"role": "user", "content": f"{prefix} " * 600 + str(number)}]
        # Some rows are refused by the engine.
        body["max_tokens"] = 0 if prefix == 3 else 9
    request = {"custom_id": f"row-{number}", "method": "POST", "url": url, "body": body}
    return json.dumps(request).encode()


def check() -> InputCheck:
    return InputCheck("/v1/chat/completions", CATALOG.endpoints_by_name(), is_mixed=True)


def span_bytes(body: bytes, span: RowSpan) -> bytes:
    return body[span.start : span.end]


@settings(deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from(["m", "other", "vectors"]), st.integers(0, 3), st.booleans()),
        min_size=1,
        max_size=60,
    ),
    slice_rows=st.integers(1, 9),
    slice_bytes=st.integers(1, 30_000),
    span_rows=st.integers(1, 40),
    has_last_line_feed=st.booleans(),
    dice=st.randoms(use_true_random=False),
)
def test_every_row_is_in_one_slice_whose_copy_has_its_very_lines(
    rows: list[tuple[str, int, bool]],
    slice_rows: int,
    slice_bytes: int,
    span_rows: int,
    has_last_line_feed: bool,
    dice: random.Random,
) -> None:
    texts = [line(number, model, prefix) for number, (model, prefix, _) in enumerate(rows)]
    # Blank lines are no rows.
    body = b"".join(
        text + (b"\n\n" if blank else b"\n") for text, (*_, blank) in zip(texts, rows, strict=True)
    )
    body = body if has_last_line_feed else body.rstrip(b"\n")
    found = check()
    cutter = Cutter(
        LaneShares(CATALOG),
        SliceLimits(rows=slice_rows, bytes=slice_bytes),
        SpanLimits(rows=span_rows),
    )
    spans = cutter.take(found.feed(body)) + cutter.take(found.finish()) + cutter.finish()
    assert not found.problems
    slices: list[Slice] = []
    copies: dict[str, bytes] = {}
    for number, span in enumerate(spans):
        order = span.order(span_bytes(body, span))
        if dice.random() < 0.3:
            order = list(range(len(span.rows)))
            dice.shuffle(order)
            order.sort(key=lambda position: span.rows[position].lane)
        if order is None:
            slices += cutter.cut(span)
            continue
        own = cutter.groups(span, order, copy=f"{number}")
        copies[f"{number}"] = b"".join(
            text
            for slice_ in own
            for text in span.lines(
                span_bytes(body, span), [row - own[0].first_row for row in slice_.row_numbers]
            )
        )
        slices += [*cutter.skip(span), *own]
    slices += cutter.cut_rest()

    assert sorted(row for one in slices for row in one.row_numbers) == list(range(len(rows)))
    for one in slices:
        numbers = list(one.row_numbers)
        wanted = [texts[row] for row in numbers]
        assert numbers == sorted(numbers)
        assert one.rows == len(numbers) <= slice_rows
        assert len({rows[row][0] for row in numbers}) == 1
        assert one.pick(split(body[one.start : one.end])) == wanted
        if one.copy is not None:
            assert split(copies[one.copy.name][one.copy.start : one.copy.end]) == wanted
            assert one.copy.end - one.copy.start <= slice_bytes or one.rows == 1
    # A stretch is a run of slices, and its rows come after those of the stretch before it.
    for before, one in pairwise(slices):
        if before.first_row != one.first_row:
            assert max(before.row_numbers) < one.first_row
    stretches = [one.first_row for one in slices]
    assert stretches == sorted(stretches)
    for one in slices:
        assert bool(one.mask) == (stretches.count(one.first_row) > 1)


def cut(prefixes: list[int], *, model: str = "m", spans: SpanLimits | None) -> list[RowSpan]:
    body = b"".join(line(*row) + b"\n" for row in ((n, model, p) for n, p in enumerate(prefixes)))
    found = check()
    cutter = Cutter(LaneShares(CATALOG), SliceLimits(rows=4), spans)
    return cutter.take(found.feed(body)) + cutter.finish()


def test_only_prompts_that_a_cache_can_keep_are_worth_another_order() -> None:
    prefixes = list(range(10, 110)) * 5

    assert any(span.repeats for span in cut(prefixes, spans=SpanLimits()))
    assert not any(span.repeats for span in cut(prefixes, model="vectors", spans=SpanLimits()))
    assert not any(span.repeats for span in cut(prefixes, spans=None))


def test_a_window_ends_before_its_limits_are_passed() -> None:
    size = len(line(0, "m", 10)) + 1

    by_rows = cut([10] * 25, spans=SpanLimits(rows=10))
    by_bytes = cut([10] * 9, spans=SpanLimits(bytes=4 * size))

    assert [len(span.rows) for span in by_rows] == [10, 10, 5]
    assert [len(span.rows) for span in by_bytes] == [4, 4, 1]


@pytest.mark.parametrize("in_groups", [False, True])
@pytest.mark.parametrize("model", ["m", "other"])
def test_each_engine_has_slices_of_its_size(model: str, in_groups: bool) -> None:
    seats = {"m": SEATS, "other": 100}
    models = CATALOG.models
    wide = models["other"].model_copy(update={"engine": {"max_num_seqs": seats["other"]}})
    catalog = CATALOG.model_copy(update={"models": {**models, "other": wide}})
    limits = SliceLimits(tokens=10**9)
    cutter, found = Cutter(LaneShares(catalog), limits, SpanLimits()), check()
    body = b"".join(line(number, model, 10) + b"\n" for number in range(1000))
    [span] = cutter.take(found.feed(body)) + cutter.take(found.finish()) + cutter.finish()

    slices = (
        cutter.groups(span, range(1000), copy="0")
        if in_groups
        else [*cutter.cut(span), *cutter.cut_rest()]
    )

    assert {one.rows for one in slices[:-1]} == {limits.of_engine(seats[model]).rows}
