"""Keeps what requests and answers say out of vLLM's log.

vLLM warns of an answer that its parsers cannot read, and of a request that its front fails at, and
repeats a part of it, itself or in the text of an exception.
"""

import logging
import traceback

#: The modules of vLLM that work on the text of requests and answers.
_OF_TEXTS = (
    "vllm.entrypoints.anthropic.",
    "vllm.entrypoints.chat_utils",
    "vllm.entrypoints.openai.chat_completion.",
    "vllm.entrypoints.openai.completion.",
    "vllm.entrypoints.openai.responses.",
    "vllm.entrypoints.speech_to_text.",
    "vllm.parser.",
    "vllm.reasoning.",
    "vllm.renderers.",
    "vllm.tool_parsers.",
)
#: What tells of an exception that vLLM's app has no answer for, in a live call.
_SERVER = "uvicorn.error"
#: In place of what such a module says. The beginning of the line tells where it stands.
HIDDEN = "(not repeated, because it may quote a request or an answer)"


def hide_words() -> None:
    """Let this process's log of vLLM tell what is wrong without quoting it. May be called twice."""
    # Where vLLM writes, and where it would if it were told not to configure its log.
    for logger in (logging.getLogger("vllm"), logging.getLogger()):
        for handler in logger.handlers:
            handler.addFilter(_without_words)
    logging.getLogger(_SERVER).addFilter(_without_words)


def _without_words(record: logging.LogRecord) -> bool:
    """Lets every record pass; of a warning about a text only its place and its kind."""
    is_of_text = record.name.startswith(_OF_TEXTS) and record.levelno >= logging.WARNING
    if not is_of_text and not (record.name == _SERVER and record.exc_info):
        return True
    record.msg, record.args = HIDDEN, ()
    if record.exc_info:
        kind, _, frames = record.exc_info
        name = kind.__name__ if kind else "unknown"
        # What formatters take instead of the exception. Lines of code hold nothing of a request.
        record.exc_text = f"{''.join(traceback.format_tb(frames))}{name}"
        record.exc_info = None
    return True
