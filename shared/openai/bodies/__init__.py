"""What the body of a request may hold: whatever the engine refuses by the body alone is found here.

There is one model for each endpoint. The models say what vLLM 0.29 says, in its lax way of reading
("5" is a number), and leave out what depends on the engine's settings. A field that no model names
is accepted unseen, as in the engine. `tests/engine/test_bodies.py` compares the two. Pure.
"""

from shared.openai.bodies.answer_form import ResponseFormat
from shared.openai.bodies.body import Body, read_body
from shared.openai.bodies.embedding import EmbeddingBody
from shared.openai.bodies.generation import COMPLETION_TOKENS, ChatBody, CompletionBody, Tool
from shared.openai.bodies.refusals import Refusal
from shared.openai.bodies.response import ResponseBody

__all__ = [
    "COMPLETION_TOKENS",
    "Body",
    "ChatBody",
    "CompletionBody",
    "EmbeddingBody",
    "Refusal",
    "ResponseBody",
    "ResponseFormat",
    "Tool",
    "read_body",
]
