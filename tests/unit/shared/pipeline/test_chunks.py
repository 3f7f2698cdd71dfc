"""Chunks of a text."""

from hypothesis import given
from hypothesis import strategies as st

from shared.pipeline.chunks import Tokens, chunks, estimated

_texts = st.text(alphabet="ab é漢\n", min_size=1, max_size=300)


@given(text=_texts, tokens=st.integers(1, 20))
def test_chunks_without_overlap_are_the_text(text: str, tokens: int) -> None:
    assert "".join(chunks(text, estimated(text), tokens, 0)) == text


@given(text=_texts, tokens=st.integers(1, 20), overlap=st.integers(0, 19))
def test_no_chunk_has_more_tokens_than_it_may(text: str, tokens: int, overlap: int) -> None:
    starts = estimated(text).starts
    pieces = [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]

    for chunk in chunks(text, Tokens(starts), tokens, min(overlap, tokens - 1)):
        runs = range(len(pieces))
        sizes = [
            end - start
            for start in runs
            for end in range(start + 1, min(start + tokens, len(pieces)) + 1)
            if "".join(pieces[start:end]) == chunk
        ]
        assert sizes


@given(text=_texts, tokens=st.integers(1, 20), overlap=st.integers(0, 19))
def test_a_chunk_that_counts_for_more_alone_is_cut_shorter(
    text: str, tokens: int, overlap: int
) -> None:
    """Here each sign is a token, and a text alone has one more for each `é`."""

    def count(chunk: str) -> int:
        return len(chunk) + chunk.count("é")

    found = list(chunks(text, Tokens(range(len(text)), count), tokens, min(overlap, tokens - 1)))

    assert all(count(one) <= max(tokens, 2) or len(one) == 1 for one in found)
    if overlap == 0:
        assert "".join(found) == text


def test_chunks_overlap_by_so_many_tokens() -> None:
    text = "one two three four five six"

    found = list(chunks(text, estimated(text), 4, 1))

    assert found[0] == "one two three "
    assert found[1].startswith("e ")


def test_a_chunk_ends_between_words_where_it_can() -> None:
    text = "one two seventeen four"

    found = list(chunks(text, estimated(text), 4, 0))

    assert found == ["one two ", "seventeen four"]


def test_a_short_text_is_one_chunk() -> None:
    assert list(chunks("short", estimated("short"), 10, 3)) == ["short"]
