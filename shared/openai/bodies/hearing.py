"""The bodies of requests that write down what a sound says, in vLLM's batch form. Pure."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from shared.openai.bodies.body import Body
from shared.openai.bodies.fields import Int64


class HearingBody(Body):
    """What transcriptions and translations have in common."""

    # A beam search enters the engine as many requests, past its order and its limits.
    closed: ClassVar[frozenset[str]] = Body.closed | {
        "include_stop_str_in_output",
        "length_penalty",
        "n",
        "use_beam_search",
        # OpenAI's form has a file in it, which a line of JSON cannot hold.
        "file",
    }
    # The engine gives segments in any case, and never words.
    unread: ClassVar[frozenset[str]] = Body.unread | {
        "stream_continuous_usage_stats",
        "stream_include_usage",
        "timestamp_granularities",
        "timestamp_granularities[]",
    }

    file_url: str
    prompt: str = ""
    language: str | None = None
    to_language: str | None = None
    hotwords: str | None = None
    temperature: Annotated[float, Field(ge=0)] = 0.0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: Int64 | None = None
    frequency_penalty: float | None = 0.0
    presence_penalty: float | None = 0.0
    repetition_penalty: float | None = None
    max_completion_tokens: int | None = None
    stream: bool | None = False
    # The engine looks at none of these.
    user: Any = None
    request_id: Any = None
    priority: Any = None
    cache_salt: Any = None


class TranscriptionBody(HearingBody):
    """The body of a request for what is said, in its own language."""

    response_format: Literal["json", "text", "srt", "verbose_json", "vtt", "diarized_json"] = "json"


class TranslationBody(HearingBody):
    """The body of a request for what is said, in English."""

    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
