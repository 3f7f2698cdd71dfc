"""Cuts a text into chunks of at most so many tokens. Pure.

Together the chunks are the text: without an overlap, it is what they are one after the other.
"""

from collections.abc import Iterator, Sequence

#: As many bytes count as a token where nothing else says what a token is.
_BYTES_PER_TOKEN = 4


def chunks(text: str, starts: Sequence[int], tokens: int, overlap: int) -> Iterator[str]:
    """The chunks of a text whose tokens begin at these characters, from 0 on, in order.

    A chunk ends between two words, if there are any in its second half. Each begins with the last
    `overlap` tokens of the one before, at most.
    """
    first = 0
    while True:
        last = first + tokens
        if last >= len(starts):
            yield text[_at(starts, first, text) :]
            return
        last = _between_words(text, starts, first, last)
        yield text[_at(starts, first, text) : starts[last]]
        # It goes on in any case: a cut between words may leave less than the overlap.
        first = max(first + 1, last - overlap)


def estimated_starts(text: str) -> list[int]:
    """Where tokens would begin, by their usual size: none is longer than its word."""
    starts, size = [0], 0
    for place, sign in enumerate(text):
        begins_word = place > 0 and text[place - 1].isspace() and not sign.isspace()
        if size >= _BYTES_PER_TOKEN or begins_word:
            starts.append(place)
            size = 0
        size += len(sign.encode(errors="surrogatepass"))
    return starts


def _at(starts: Sequence[int], number: int, text: str) -> int:
    return starts[number] if number < len(starts) else len(text)


def _between_words(text: str, starts: Sequence[int], first: int, last: int) -> int:
    """The last token from the middle on before which a word ends; the last one without any."""
    middle = max(first + 1, (first + last) // 2)
    for number in range(last, middle - 1, -1):
        place = starts[number]
        if text[place].isspace() or text[place - 1].isspace():
            return number
    return last
