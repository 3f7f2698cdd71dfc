"""Chunks of a text."""

from hypothesis import given
from hypothesis import strategies as st

from shared.pipeline.chunks import chunks, estimated_starts

_texts = st.text(alphabet="ab é漢\n", min_size=1, max_size=300)


@given(text=_texts, tokens=st.integers(1, 20))
def test_chunks_without_overlap_are_the_text(text: str, tokens: int) -> None:
    assert "".join(chunks(text, estimated_starts(text), tokens, 0)) == text


@given(text=_texts, tokens=st.integers(1, 20), overlap=st.integers(0, 19))
def test_no_chunk_has_more_tokens_than_it_may(text: str, tokens: int, overlap: int) -> None:
    starts = estimated_starts(text)
    pieces = [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]

    for chunk in chunks(text, starts, tokens, min(overlap, tokens - 1)):
        runs = range(len(pieces))
        sizes = [
            end - start
            for start in runs
            for end in range(start + 1, min(start + tokens, len(pieces)) + 1)
            if "".join(pieces[start:end]) == chunk
        ]
        assert sizes


def test_chunks_overlap_by_so_many_tokens() -> None:
    text = "one two three four five six"

    found = list(chunks(text, estimated_starts(text), 4, 1))

    assert found[0] == "one two three "
    assert found[1].startswith("e ")


def test_a_chunk_ends_between_words_where_it_can() -> None:
    text = "one two seventeen four"

    found = list(chunks(text, estimated_starts(text), 4, 0))

    assert found == ["one two ", "seventeen four"]


def test_a_short_text_is_one_chunk() -> None:
    assert list(chunks("short", estimated_starts("short"), 10, 3)) == ["short"]
