"""Cuts a text into chunks of at most so many tokens. Pure.

Together the chunks are the text: without an overlap, it is what they are one after the other.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

#: As many bytes count as a token where nothing else says what a token is.
_BYTES_PER_TOKEN = 4


class Tokens(NamedTuple):
    """What is known of a text's tokens."""

    #: Where they begin: characters from 0 on, in order. Some may begin at the same one.
    starts: Sequence[int]
    #: The tokens of a text alone; None where that is what it has within the whole.
    count_alone: Callable[[str], int] | None = None


def chunks(text: str, found: Tokens, tokens: int, overlap: int) -> Iterator[str]:
    """The chunks of the text, in order.

    A chunk ends between two words, if there are any in its second half. Each begins with the last
    `overlap` tokens of the one before, at most. Only a single token that counts as several alone
    may be more than it should.
    """
    starts, first = found.starts, 0
    while True:
        begin = _at(starts, first, text)
        last = first + tokens
        if last >= len(starts) and _fits(text[begin:], found, tokens):
            yield text[begin:]
            return
        last = min(last, len(starts) - 1)
        if last <= first:
            yield text[begin:]
            return
        last = _between_words(text, starts, first, last)
        while last > first + 1 and not _fits(text[begin : starts[last]], found, tokens):
            last -= 1
        yield text[begin : starts[last]]
        # It goes on in any case: a cut between words may leave less than the overlap.
        first = max(first + 1, last - overlap)


def estimated(text: str) -> Tokens:
    """Tokens by their usual size: none is longer than its word."""
    starts, size = [0], 0
    for place, sign in enumerate(text):
        begins_word = place > 0 and text[place - 1].isspace() and not sign.isspace()
        if size >= _BYTES_PER_TOKEN or begins_word:
            starts.append(place)
            size = 0
        size += len(sign.encode(errors="surrogatepass"))
    return Tokens(starts)


def _fits(chunk: str, found: Tokens, tokens: int) -> bool:
    return found.count_alone is None or found.count_alone(chunk) <= tokens


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
