import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from gateway.tally import Tally
from gateway.tokens import Counter, load_counter
from shared.catalog import Model
from shared.input.rows import Row
from shared.input.validation import InputCheck
from shared.openai.image_rules import ImageRule
from shared.openai.media import MediaRules
from shared.openai.row_rules import RowRules
from tests.models import as_its_files_say, make_model

COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
_CHAT = "/v1/chat/completions"
#: As far as anybody reads it.
_PNG_OF_448_BY_336 = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 448, 336)
#: The rule of the model's images: a token for 56 by 56 pixels.
_IMAGES = ImageRule(part=56)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), max_tokens=None)


def test_every_row_is_counted_when_there_is_time(folder: Path) -> None:
    # Each prompt begins with one token of its own.
    rows = _rows(_body([7] * 10, max_tokens=5), _body([7] * 20, max_tokens=6, n=2))
    tally = Tally(every=1)

    tally.add(rows, _counter(folder, 1000))

    tokens, context = tally.tokens(), tally.context_length()
    assert (30, 17, 2, False) == (
        tokens.input,
        tokens.output,
        tokens.rows_counted,
        tokens.is_estimate,
    )
    assert (1000, 2, [], 0) == (
        context.max_model_len,
        context.rows_checked,
        context.violations,
        context.more_violations,
    )


def test_rows_that_do_not_fit_are_reported_by_their_lines(folder: Path) -> None:
    rows = _rows(
        _body([7] * 40, max_tokens=24),
        _body([7] * 40, max_tokens=25),
        _body([7] * 48),
        _body([7] * 49),
        _body([7], max_tokens=64),
        _body([[7] * 10] * 9, max_tokens=54, n=3),
    )
    tally = Tally(every=1)

    tally.add(rows, _counter(folder, 64))

    context = tally.context_length()
    # A completion without a limit of its own asks for 16 tokens.
    assert [(2, 40, 25), (4, 49, 16), (5, 1, 64)] == [
        (bad.line, bad.input_tokens, bad.output_tokens) for bad in context.violations
    ]
    assert 6 == context.rows_checked


def test_output_that_the_context_has_no_room_for_is_not_predicted(folder: Path) -> None:
    rows = _rows(
        _body([7] * 40, max_tokens=10_000_000),
        _body([7] * 40, max_tokens=20, n=2),
        _body([7] * 40, max_tokens=-1),
    )
    tally = Tally(every=1)

    tally.add(rows, _counter(folder, 64))

    assert 40 == tally.tokens().output
    assert [1] == [bad.line for bad in tally.context_length().violations]


def test_a_guess_is_no_more_than_the_context_has_room_for(folder: Path) -> None:
    messages = [{"role": "user", "content": "fox"}]
    rows = _rows({"model": "m", "messages": messages}, url="/v1/chat/completions")
    tally = Tally(every=1)

    tally.add(rows, _counter(folder, 64))

    assert 64 == tally.tokens().input + tally.tokens().output


def test_requests_that_the_engine_would_refuse_are_listed_and_not_counted(folder: Path) -> None:
    rows = _rows(_body([7] * 10, max_tokens=5), _body([7] * 10, max_tokens=-1), _body(5))
    tally = Tally(every=1)

    tally.add(rows, _counter(folder, 64))

    assert [(2, "body.max_tokens"), (3, "body.prompt")] == [
        (bad.line, bad.param) for bad in tally.refused
    ]
    assert tally.refused[0].message == "Input should be greater than or equal to 1."
    assert (10, 5, 1, 2) == (
        tally.tokens().input,
        tally.tokens().output,
        tally.tokens().rows_counted,
        tally.refused_count,
    )


def test_an_embedding_may_fill_the_context(folder: Path) -> None:
    rows = _rows(_body([7] * 64, "input"), _body([7] * 65, "input"), url=EMBEDDINGS)
    tally = Tally(every=1)

    tally.add(rows, _counter(folder, 64))

    assert [(2, 65, 0)] == [
        (bad.line, bad.input_tokens, bad.output_tokens) for bad in tally.context_length().violations
    ]


def test_of_many_rows_a_sample_is_counted_and_the_rest_estimated(folder: Path) -> None:
    rows = _rows(*[_body("the quick fox " * (1 + number % 3)) for number in range(100)])
    whole, sample = Tally(every=1), Tally(every=7)

    for tally in (whole, sample):
        tally.add(rows, _counter(folder, None))

    exact, estimate = whole.tokens(), sample.tokens()
    assert (100, False) == (exact.rows_counted, exact.is_estimate)
    assert (15, True) == (estimate.rows_counted, estimate.is_estimate)
    assert estimate.input == pytest.approx(exact.input, rel=0.1)
    assert "15 of 100 rows" in estimate.note
    assert 0 == sample.context_length().rows_checked


def test_a_row_that_may_be_too_long_is_counted_outside_of_the_sample_too(folder: Path) -> None:
    bodies = [_body("fox")] * 20
    bodies[13] = _body("fox " * 2000)
    tally = Tally(every=10**6)

    tally.add(_rows(*bodies), _counter(folder, 1000))

    context = tally.context_length()
    assert [14] == [bad.line for bad in context.violations]
    assert (20, 2) == (context.rows_checked, tally.tokens().rows_counted)


def test_without_time_nothing_more_is_counted(folder: Path) -> None:
    tally = Tally(every=1, seconds=1e-9)

    tally.add(_rows(*[_body("the fox " * 50)] * 30), _counter(folder, 64))

    assert tally.tokens().rows_counted <= 2
    assert tally.tokens().is_estimate
    assert tally.context_length().rows_checked <= 2


def test_without_a_tokenizer_bytes_are_counted_and_only_what_is_certain_is_said(
    tmp_path: Path,
) -> None:
    rows = _rows(_body("x" * 4000), _body("x", max_tokens=64), _body("x", max_tokens=63))
    tally = Tally(every=1)

    tally.add(rows, _counter(tmp_path, 64))

    tokens, context = tally.tokens(), tally.context_length()
    assert ("bytes", 0, True) == (tokens.counted_by, tokens.rows_counted, tokens.is_estimate)
    assert sum(len(row.line) // 4 for row in rows) == tokens.input
    assert [(2, None, 64)] == [
        (bad.line, bad.input_tokens, bad.output_tokens) for bad in context.violations
    ]
    assert 1 == context.rows_checked


def test_pictures_count_by_their_pixels_and_never_as_text(folder: Path, tmp_path: Path) -> None:
    here = "data:image/png;base64," + base64.b64encode(_PNG_OF_448_BY_336 + b"x" * 100_000).decode()
    rows = [_seen(here), _seen("s3://acme/a.png")]
    known, unknown, sampled = Tally(every=1), Tally(every=1), Tally(every=2)

    known.add(_rows(*rows, url=_CHAT), _counter(folder, 9000))
    unknown.add(_rows(*rows, url=_CHAT), _counter(tmp_path, 9000))
    sampled.add(_rows(*[rows[0]] * 4, url=_CHAT), _counter(folder, None))

    # 8 by 6 parts; the other one counts as if it had 896 pixels each way: 16 by 16.
    texts = known.tokens().input - 8 * 6 - 16 * 16
    assert 0 < texts < 100
    assert 0 < unknown.tokens().input < 8 * 6 + 16 * 16 + 200
    assert 0 < sampled.tokens().input - 4 * 8 * 6 < 200
    assert all(tally.tokens().is_estimate for tally in (known, unknown, sampled))
    # Nothing certain is said of them.
    assert known.context_length().rows_checked == 0


def test_videos_count_by_their_bytes_as_an_estimate(folder: Path) -> None:
    here = "data:video/mp4;base64," + base64.b64encode(b"x" * 512 * 300).decode()
    tally = Tally(every=1)

    tally.add(
        _rows(*(_seen(url, "video_url") for url in (here, "s3://acme/a.mp4")), url=_CHAT),
        _counter(folder, 9000),
    )

    # What is elsewhere is not looked at.
    assert 0 < tally.tokens().input - 300 - 1024 < 100
    assert tally.tokens().is_estimate
    assert tally.context_length().rows_checked == 0


def test_only_the_first_thousand_long_rows_are_listed(folder: Path) -> None:
    tally = Tally(every=1)

    tally.add(_rows(*[_body([1], max_tokens=100)] * 1005), _counter(folder, 64))

    context = tally.context_length()
    assert (1000, 5, 1005) == (
        len(context.violations),
        context.more_violations,
        context.rows_checked,
    )


def test_nothing_has_no_tokens() -> None:
    tokens = Tally(every=1).tokens()

    assert (0, 0, False) == (tokens.input, tokens.output, tokens.is_estimate)


def _counter(folder: Path, max_model_len: int | None) -> Counter:
    engine = {} if max_model_len is None else {"max_model_len": max_model_len}
    model = Model(name="m", source=str(folder), pools=("p",), engine=engine, image_tokens=_IMAGES)
    return load_counter(model, as_its_files_say)


def _body(prompt: object, name: str = "prompt", **more: Any) -> dict[str, Any]:
    return {"model": "m", name: prompt, **more}


def _seen(url: str, kind: str = "image_url") -> dict[str, Any]:
    part = {"type": kind, kind: {"url": url}}
    return {"model": "m", "messages": [{"role": "user", "content": [part]}]}


def _rows(*bodies: dict[str, Any], url: str = COMPLETIONS) -> list[Row]:
    lines = [
        json.dumps({"custom_id": str(number), "method": "POST", "url": url, "body": body})
        for number, body in enumerate(bodies)
    ]
    rules = RowRules(media=MediaRules(places=("s3://acme/",)), images=_IMAGES)
    check = InputCheck(url, {"m": frozenset({url})}, rules={"m": rules})
    return [*check.feed("\n".join(lines).encode()), *check.finish()]
