from shared.input.request_lines import split


def test_lines_are_split_at_line_feeds_only() -> None:
    text = '{"a":"x\u2028y\u0085z\x0c"}'.encode()

    assert [text, b"{}"] == split(b"\xef\xbb\xbf" + text + b"\n\n  \n{}")
