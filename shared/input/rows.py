"""The rows of an input, with the tokens that each is predicted to take. Pure."""

import msgspec

from shared.openai.bodies import Refusal
from shared.openai.endpoints import Endpoint

#: Bytes of JSON that stand for about one token.
BYTES_PER_TOKEN = 4
#: Predicted output of a request that sets no limit, and of one whose answer ends only with it.
_DEFAULT_OUTPUT_TOKENS, _UNENDING_TOKENS = 256, 8192
#: A larger number is no count of tokens or answers that anything could take.
MAX_COUNT = 2**31


class Row(msgspec.Struct, gc=False):
    """A request that is part of the batch: bytes [start, end) of the input's object.

    The line feed is included in the bytes. `tokens` are predicted, prompt and output together.
    `output` is the output among them: what the request allows, or a guess if it sets no limit for
    one answer, in which case `limit` is None. `sequences` are its prompts times their answers. A
    row with a `refusal` gets an error from the engine instead of an answer, so its output is 0. A
    row with a `bad_line` has that in place of its line, and never runs. The same holds for `known`,
    which has an answer.
    """

    number: int
    start: int
    end: int
    tokens: int
    output: int
    limit: int | None
    sequences: int
    line: bytes
    url: str
    model: str
    refusal: Refusal | None = None
    bad_line: bytes | None = None
    known: bytes | None = None


def predicted_output(
    endpoint: Endpoint,
    limit: int | None,
    sequences: int,
    *,
    most: int | None = None,
    min_tokens: int = 0,
    is_unending: bool = False,
) -> int:
    """The tokens that the engine writes for a request, at most or by guess.

    `most` is what no answer exceeds, and `min_tokens` what each one has. Bounded, because the sums
    of these numbers have to stay integers in Redis and its scripts.
    """
    if not endpoint.has_output:
        return 0
    guess = (most or _UNENDING_TOKENS) if is_unending else _DEFAULT_OUTPUT_TOKENS
    tokens = max(limit or guess, min_tokens)
    if most is not None:
        tokens = min(tokens, most)
    return min(sequences * tokens, MAX_COUNT)


def count_or_none(value: object) -> int | None:
    """The value if it is a count, and None for everything else that JSON may hold."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return int(value) if is_number and 0 < value < MAX_COUNT else None  # type: ignore[call-overload, operator]
