import json

from shared.input.request_lines import custom_id_of, mended, split


def test_lines_are_split_at_line_feeds_only() -> None:
    text = '{"a":"x\u2028y\u0085z\x0c"}'.encode()

    assert [text, b"{}"] == split(b"\xef\xbb\xbf" + text + b"\n\n  \n{}")


def test_half_a_surrogate_pair_becomes_a_question_mark_and_a_whole_one_stays() -> None:
    line = rb'{"custom_id": "a", "body": {"\ud83d": "\ud83d\ude00 \\ud83d \udc00"}}'

    assert json.loads(mended(line)) == {"custom_id": "a", "body": {"?": "\U0001f600 \\ud83d ?"}}
    assert custom_id_of(line) == "a"


def test_what_is_no_json_or_has_an_unwritable_name_stays_as_it_is() -> None:
    marked = b'\xef\xbb\xbf{"custom_id": "a"}'
    for line in (b"{", b"[" * 100_000, marked, "{}".encode("utf-16"), rb'{"custom_id": "\ud83d"}'):
        assert mended(line) == line
