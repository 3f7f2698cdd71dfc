"""The bodies of requests that compare texts: scores of pairs, and documents in order. Pure."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from shared.openai.bodies.fields import Object
from shared.openai.bodies.pooling import PooledBody
from shared.openai.bodies.refusals import Refusal, wrong

#: The names that the two sides of a score's pairs may have, in the order in which they are tried.
SCORE_FORMS = (
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
    ("text_1", "text_2"),
)


def _is_text(value: object) -> bool:
    if isinstance(value, dict):
        return isinstance(value.get("content"), list)
    return isinstance(value, str)


def _is_side(value: object) -> bool:
    return _is_text(value) or (isinstance(value, list) and all(map(_is_text, value)))


def _text(value: object) -> object:
    if not _is_text(value):
        raise wrong("Input should be a string, or an object with a content")
    return value


def _side(value: object) -> object:
    if not _is_side(value):
        raise wrong("Input should be a string, an object with a content, or a list of these")
    return value


class _ComparingBody(PooledBody):
    """What scores and reranking have in common."""

    max_tokens_per_query: int = 0
    max_tokens_per_doc: int = 0
    instruction: str | None = None
    chat_template_kwargs: Object | None = None


class ScoreBody(_ComparingBody):
    """The body of a request for the scores of pairs: each of one side with each of the other."""

    queries: Any = None
    documents: Any = None
    items: Any = None
    data_1: Any = None
    data_2: Any = None
    text_1: Any = None
    text_2: Any = None

    def conflicts(self, raw: Mapping[str, Any]) -> Iterator[Refusal]:
        if any(all(_is_side(raw.get(name)) for name in form) for form in SCORE_FORMS):
            return
        named = [name for form in SCORE_FORMS for name in form if name in raw]
        wrong_one = next((name for name in named if not _is_side(raw[name])), None)
        if wrong_one is not None:
            yield Refusal(
                wrong_one,
                "Input should be a string, an object with a content, or a list of these",
            )
        else:
            forms = ", ".join(f"'{one}' and '{other}'" for one, other in SCORE_FORMS)
            yield Refusal(named[0] if named else "queries", f"Input should have one of: {forms}")


class RerankBody(_ComparingBody):
    """The body of a request for documents in the order of their relevance to a query."""

    query: Annotated[Any, AfterValidator(_text)]
    documents: Annotated[Any, AfterValidator(_side)]
    top_n: Annotated[int, Field(ge=0)] = 0
