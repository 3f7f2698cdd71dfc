"""What the body of a request may hold: whatever the engine refuses by the body alone is found here.

There is one model for each endpoint, which only the table of endpoints imports. The models say what
vLLM 0.29 says, in its lax way of reading ("5" is a number), and leave out what depends on the
engine's settings. A field that no model names is accepted unseen, as in the engine.
`tests/engine/test_bodies.py` compares the two. Pure.
"""

from shared.openai.bodies.answer_form import ResponseFormat
from shared.openai.bodies.body import Body, read_body
from shared.openai.bodies.generation import Tool
from shared.openai.bodies.refusals import Refusal

__all__ = [
    "Body",
    "Refusal",
    "ResponseFormat",
    "Tool",
    "read_body",
]
