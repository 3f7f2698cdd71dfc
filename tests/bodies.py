"""Bodies of requests: good ones, wrong ones and odd ones."""

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
EMBEDDINGS, RESPONSES = "/v1/embeddings", "/v1/responses"
TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
MESSAGES, MODERATIONS = "/v1/messages", "/v1/moderations"
SCORE, RERANK, CLASSIFY, POOLING = "/score", "/rerank", "/classify", "/pooling"
_USER = {"role": "user", "content": "x"}
_FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
_SCHEMA = {"name": "answer", "schema": {"type": "object"}}

#: For each endpoint, a body that every engine accepts.
GOOD: Mapping[str, dict[str, Any]] = {
    CHAT: {"model": "m", "messages": [_USER]},
    COMPLETIONS: {"model": "m", "prompt": "x"},
    EMBEDDINGS: {"model": "m", "input": "x"},
    RESPONSES: {"model": "m", "input": "x"},
    MESSAGES: {"model": "m", "messages": [_USER], "max_tokens": 5},
    SCORE: {"model": "m", "queries": "x", "documents": ["y", "z"]},
    RERANK: {"model": "m", "query": "x", "documents": ["y", "z"]},
    CLASSIFY: {"model": "m", "input": "x"},
    POOLING: {"model": "m", "input": "x"},
    MODERATIONS: {"model": "m", "input": "x"},
    TRANSCRIPTIONS: {"model": "m", "file_url": "data:audio/wav;base64,UklGRg=="},
    TRANSLATIONS: {"model": "m", "file_url": "data:audio/wav;base64,UklGRg=="},
}
#: Paths that vLLM has besides, for the same bodies.
OTHER_PATHS: Mapping[str, str] = {
    "/v1/score": SCORE,
    "/v1/rerank": RERANK,
    "/v2/rerank": RERANK,
}
#: Changes of a good body that the engine refuses, and the field that the refusal names.
WRONG: tuple[tuple[str, dict[str, Any], str], ...] = (
    (CHAT, {"max_tokens": -1}, "max_tokens"),
    (CHAT, {"max_tokens": 0}, "max_tokens"),
    (CHAT, {"max_tokens": "many"}, "max_tokens"),
    (CHAT, {"max_tokens": 1.5}, "max_tokens"),
    (CHAT, {"max_completion_tokens": 0, "max_tokens": 5}, "max_completion_tokens"),
    (CHAT, {"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    (CHAT, {"min_tokens": None}, "min_tokens"),
    (CHAT, {"n": 0}, "n"),
    (CHAT, {"n": 2, "temperature": 0}, "n"),
    (CHAT, {"temperature": 2.1}, "temperature"),
    (CHAT, {"temperature": -0.1}, "temperature"),
    (CHAT, {"temperature": "warm"}, "temperature"),
    (CHAT, {"top_p": 0}, "top_p"),
    (CHAT, {"top_k": -2}, "top_k"),
    (CHAT, {"min_p": 1.1}, "min_p"),
    (CHAT, {"presence_penalty": 2.1}, "presence_penalty"),
    (CHAT, {"frequency_penalty": -3}, "frequency_penalty"),
    (CHAT, {"repetition_penalty": 0}, "repetition_penalty"),
    (CHAT, {"seed": 2**63}, "seed"),
    (CHAT, {"stop": ""}, "stop"),
    (CHAT, {"stop": ["a", 5]}, "stop.1"),
    (CHAT, {"logprobs": 3}, "logprobs"),
    (CHAT, {"top_logprobs": 2}, "top_logprobs"),
    (CHAT, {"top_logprobs": "2", "logprobs": True}, "top_logprobs"),
    (CHAT, {"logprob_token_ids": [1]}, "logprob_token_ids"),
    (CHAT, {"logit_bias": {"word": 1}}, "logit_bias"),
    (CHAT, {"stream_options": {"include_usage": True}}, "stream_options"),
    (CHAT, {"reasoning_effort": "huge"}, "reasoning_effort"),
    (CHAT, {"thinking_token_budget": 1.0}, "thinking_token_budget"),
    (CHAT, {"user": 5}, "user"),
    (CHAT, {"cache_salt": ""}, "cache_salt"),
    (CHAT, {"bad_words": [""]}, "bad_words.0"),
    (
        CHAT,
        {"continue_final_message": True, "add_generation_prompt": True},
        "continue_final_message",
    ),
    (CHAT, {"messages": None}, "messages"),
    (CHAT, {"messages": "x"}, "messages"),
    (CHAT, {"messages": ["x"]}, "messages.0"),
    (CHAT, {"messages": [_USER, {"content": "x"}]}, "messages.1"),
    (CHAT, {"messages": [{"role": "user", "content": None}]}, "messages.0"),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages.0"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0"),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": ["f"]}]}, "messages.0"),
    (CHAT, {"response_format": "json"}, "response_format"),
    (CHAT, {"response_format": {"type": "xml"}}, "response_format.type"),
    (CHAT, {"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (
        CHAT,
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
        "response_format.json_schema.name",
    ),
    (
        CHAT,
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
        "response_format.json_schema.schema",
    ),
    (CHAT, {"structured_outputs": {}}, "structured_outputs"),
    (CHAT, {"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
    (CHAT, {"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
    (CHAT, {"tools": []}, "tools"),
    (CHAT, {"tools": [{"type": "function"}]}, "tools.0.function"),
    (CHAT, {"tools": [{"function": {}}]}, "tools.0.function.name"),
    (CHAT, {"tool_choice": "auto"}, "tool_choice"),
    (CHAT, {"tools": [_FUNCTION], "tool_choice": "any"}, "tool_choice"),
    (
        CHAT,
        {"tools": [_FUNCTION], "tool_choice": {"function": {"name": "g"}}},
        "tool_choice",
    ),
    (COMPLETIONS, {"prompt": ""}, "prompt"),
    (COMPLETIONS, {"prompt": [-1]}, "prompt.0"),
    (COMPLETIONS, {"prompt": 5}, "prompt"),
    (COMPLETIONS, {"max_tokens": 0}, "max_tokens"),
    (COMPLETIONS, {"min_tokens": 17}, "min_tokens"),
    (COMPLETIONS, {"n": None}, "n"),
    (COMPLETIONS, {"logprobs": "1"}, "logprobs"),
    (COMPLETIONS, {"logprobs": -2}, "logprobs"),
    (COMPLETIONS, {"suffix": 5}, "suffix"),
    (EMBEDDINGS, {"input": None}, "input"),
    (EMBEDDINGS, {"input": 5}, "input"),
    (EMBEDDINGS, {"input": ["a", 5]}, "input.0"),
    (EMBEDDINGS, {"dimensions": "many"}, "dimensions"),
    (EMBEDDINGS, {"dimensions": 0}, "dimensions"),
    (EMBEDDINGS, {"encoding_format": "binary"}, "encoding_format"),
    (EMBEDDINGS, {"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    (EMBEDDINGS, {"normalize": True}, "normalize"),
    (RESPONSES, {"input": 5}, "input"),
    (RESPONSES, {"input": ["x"]}, "input.0"),
    (RESPONSES, {"max_output_tokens": 0}, "max_output_tokens"),
    (RESPONSES, {"temperature": 3}, "temperature"),
    (RESPONSES, {"stop": [""]}, "stop.0"),
    (RESPONSES, {"metadata": {"a": 1}}, "metadata.a"),
    (RESPONSES, {"tools": None}, "tools"),
    (RESPONSES, {"tool_choice": "required"}, "tool_choice"),
    (RESPONSES, {"text": {"format": {"type": "xml"}}}, "text.format.type"),
    (RESPONSES, {"reasoning": {"effort": "huge"}}, "reasoning.effort"),
    (RESPONSES, {"prompt": {"id": "x"}}, "prompt"),
    (RESPONSES, {"truncation": "middle"}, "truncation"),
    (MESSAGES, {"max_tokens": 0}, "max_tokens"),
    (MESSAGES, {"max_tokens": None}, "max_tokens"),
    (MESSAGES, {"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
    (
        MESSAGES,
        {"messages": [{"role": "user", "content": [{"type": "sound"}]}]},
        "messages.0.content.0.type",
    ),
    (MESSAGES, {"system": 5}, "system"),
    (MESSAGES, {"tools": [{"name": "f"}]}, "tools.0.input_schema"),
    (MESSAGES, {"tool_choice": {"type": "tool"}}, "tool_choice"),
    (MESSAGES, {"output_config": {"effort": "huge"}}, "output_config.effort"),
    (MESSAGES, {"stream": "perhaps"}, "stream"),
    (CHAT, {"stream": "perhaps"}, "stream"),
    (SCORE, {"queries": 5}, "queries"),
    (SCORE, {"documents": ["y", 5]}, "documents"),
    (SCORE, {"documents": {"text": "y"}}, "documents"),
    (SCORE, {"documents": None}, "documents"),
    (SCORE, {"use_activation": "perhaps"}, "use_activation"),
    (SCORE, {"max_tokens_per_doc": 1.5}, "max_tokens_per_doc"),
    (SCORE, {"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    (RERANK, {"query": ["x"]}, "query"),
    (RERANK, {"documents": [["y"]]}, "documents"),
    (RERANK, {"top_n": -1}, "top_n"),
    (RERANK, {"instruction": 5}, "instruction"),
    (CLASSIFY, {"input": None}, "input"),
    (CLASSIFY, {"input": ["a", 5]}, "input.0"),
    (CLASSIFY, {"normalize": True}, "normalize"),
    (CLASSIFY, {"padding": "left"}, "padding"),
    (POOLING, {"input": [_USER]}, "input.0"),
    (POOLING, {"task": "score"}, "task"),
    (POOLING, {"dimensions": 5}, "dimensions"),
    (POOLING, {"encoding_format": "binary"}, "encoding_format"),
    (TRANSCRIPTIONS, {"file_url": None}, "file_url"),
    (TRANSCRIPTIONS, {"temperature": -1}, "temperature"),
    (TRANSCRIPTIONS, {"response_format": "wav"}, "response_format"),
    (TRANSLATIONS, {"response_format": "diarized_json"}, "response_format"),
    (TRANSLATIONS, {"seed": 2**63}, "seed"),
)
#: Changes of a good body that the engine would accept and that are closed by default.
CLOSED: tuple[tuple[str, dict[str, Any], str], ...] = (
    (CHAT, {"kv_transfer_params": {"prompt_token_ids": [1]}}, "kv_transfer_params"),
    (CHAT, {"ec_transfer_params": {"a": 1}}, "ec_transfer_params"),
    (CHAT, {"vllm_xargs": {"a": 1}}, "vllm_xargs"),
    (CHAT, {"priority": -5}, "priority"),
    (CHAT, {"session_id": "x"}, "session_id"),
    (CHAT, {"request_id": "x"}, "request_id"),
    (CHAT, {"cache_salt": "x"}, "cache_salt"),
    (CHAT, {"mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs"),
    (CHAT, {"media_io_kwargs": {"video": {"num_frames": -1}}}, "media_io_kwargs"),
    (CHAT, {"chat_template": "x"}, "chat_template"),
    (CHAT, {"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template"),
    (CHAT, {"use_beam_search": True}, "use_beam_search"),
    (CHAT, {"unheard_of": {"a": [1]}}, "unheard_of"),
    (COMPLETIONS, {"prompt_embeds": "x"}, "prompt_embeds"),
    (COMPLETIONS, {"kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
    (COMPLETIONS, {"messages": [_USER]}, "messages"),
    (EMBEDDINGS, {"priority": 1}, "priority"),
    (EMBEDDINGS, {"messages": [_USER], "chat_template": "x"}, "chat_template"),
    (RESPONSES, {"request_id": "x"}, "request_id"),
    (RESPONSES, {"previous_response_id": "resp_1"}, "previous_response_id"),
    (RESPONSES, {"background": True}, "background"),
    (MESSAGES, {"thinking": {"type": "enabled"}}, "thinking"),
    (SCORE, {"mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs"),
    (RERANK, {"priority": 1}, "priority"),
    (CLASSIFY, {"messages": [_USER], "chat_template": "x"}, "chat_template"),
    (MODERATIONS, {"priority": 1}, "priority"),
    (POOLING, {"data": "http://10.0.0.1/picture.tiff"}, "data"),
    (TRANSCRIPTIONS, {"use_beam_search": True}, "use_beam_search"),
    (TRANSCRIPTIONS, {"file": "x"}, "file"),
    (TRANSLATIONS, {"vllm_xargs": {"a": 1}}, "vllm_xargs"),
)
#: What a request of the endpoint may say beside its content and its model, and many do.
OPEN: tuple[tuple[str, dict[str, Any]], ...] = (
    (CHAT, {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "seed": 1}),
    (CHAT, {"prompt_cache_key": "k", "safety_identifier": "s", "verbosity": "low"}),
    (CHAT, {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 1}),
    (CHAT, {"structured_outputs": {"choice": ["a", "b"]}, "stop_token_ids": [2]}),
    (CHAT, {"chat_template_kwargs": {"enable_thinking": False}, "documents": [{"text": "x"}]}),
    (CHAT, {"priority": 0, "cache_salt": None, "use_beam_search": False, "unheard_of": None}),
    (COMPLETIONS, {"best_of": 1, "echo": True, "ignore_eos": True, "truncate_prompt_tokens": 9}),
    (EMBEDDINGS, {"dimensions": 8, "encoding_format": "base64", "user": "u"}),
    (EMBEDDINGS, {"messages": [_USER], "add_generation_prompt": True}),
    (RESPONSES, {"store": False, "metadata": {"a": "b"}, "include": [], "reasoning": {}}),
    (MESSAGES, {"system": "x", "stop_sequences": ["y"], "metadata": {"user_id": "u"}}),
    (SCORE, {"instruction": "x", "truncate_prompt_tokens": 9, "user": "u"}),
    (RERANK, {"top_n": 1, "max_tokens_per_doc": 9, "use_activation": False}),
    (CLASSIFY, {"messages": [_USER], "add_generation_prompt": True}),
    (POOLING, {"task": "embed", "encoding_format": "base64"}),
    (TRANSCRIPTIONS, {"language": "en", "prompt": "x", "timestamp_granularities[]": ["segment"]}),
    (TRANSLATIONS, {"to_language": "en", "temperature": 0.5, "user": "u", "seed": 1}),
)
#: Changes of a good body that look wrong and that the engine accepts.
ODD: tuple[tuple[str, dict[str, Any]], ...] = (
    (CHAT, {"max_tokens": "5", "n": 1.0, "temperature": "1"}),
    (CHAT, {"max_completion_tokens": 5, "max_tokens": -1}),
    (CHAT, {"max_tokens": None, "n": None, "stop": None, "seed": None, "tools": None}),
    (CHAT, {"unheard_of": {"a": [1]}, "metadata": 5, "store": "x", "service_tier": "gold"}),
    (CHAT, {"use_beam_search": True, "temperature": -1}),
    (CHAT, {"messages": []}),
    (CHAT, {"messages": [{"role": "narrator", "content": "x"}]}),
    (CHAT, {"messages": [{"role": "user"}, {"role": "assistant", "content": None}]}),
    (
        CHAT,
        {"messages": [{"author": {"role": "user"}, "content": [{"type": "text", "text": "x"}]}]},
    ),
    (CHAT, {"tools": [_FUNCTION], "tool_choice": {"function": {"name": "f"}}}),
    (CHAT, {"tools": [{"function": {"name": "f"}}]}),
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": _SCHEMA}}),
    (CHAT, {"top_logprobs": 0}),
    (CHAT, {"top_logprobs": 2, "logprobs": "true"}),
    (CHAT, {"n": 2, "temperature": 1e-6}),
    (CHAT, {"stream_options": {}}),
    (COMPLETIONS, {"prompt": [1, "2"]}),
    (COMPLETIONS, {"prompt": [[1], [2]]}),
    (COMPLETIONS, {"echo": True, "max_tokens": 0}),
    (COMPLETIONS, {"tools": [], "messages": 5}),
    (EMBEDDINGS, {"input": [1, "2", 3.0]}),
    (EMBEDDINGS, {"input": []}),
    (EMBEDDINGS, {"input": [_USER]}),
    (EMBEDDINGS, {"input": [[_USER]]}),
    (EMBEDDINGS, {"input": 5, "messages": [_USER]}),
    (RESPONSES, {"stop": "", "n": 0, "max_tokens": -1, "tools": []}),
    (RESPONSES, {"input": {}}),
    (RESPONSES, {"max_output_tokens": "5", "tool_choice": "auto"}),
    (MESSAGES, {"messages": [], "user": 5, "max_tokens": "5"}),
    (MESSAGES, {"tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "any"}}),
    (CHAT, {"stream": "no"}),
    (EMBEDDINGS, {"stream": True}),
    (SCORE, {"queries": ["x"], "documents": []}),
    (SCORE, {"documents": {"content": [{"type": "text", "text": "y"}]}}),
    (SCORE, {"queries": 5, "text_1": "x", "text_2": "y"}),
    (SCORE, {"items": ["y"], "documents": None}),
    (RERANK, {"top_n": "1", "normalize": True}),
    (CLASSIFY, {"input": [[1, 2], [3]], "padding": None}),
    (CLASSIFY, {"input": 5, "messages": [_USER]}),
    (POOLING, {"task": None, "dimensions": None}),
    (TRANSCRIPTIONS, {"file_url": "data:", "temperature": "0.5", "max_completion_tokens": -1}),
)

_numbers = st.sampled_from(
    [-3, -2, -1, 0, 1, 2, 3, 16, 17, 2**31, 2**63 - 1, 2**63, -(2**63) - 1]
) | st.sampled_from([-2.1, -0.1, 0.0, 0.5, 1.0, 1.5, 2.0, 2.1, 1e9])
_texts = st.sampled_from(["", "x", "5", "1.5", "true", "none", "auto", "required", "text", "low"])
_scalars = st.none() | st.booleans() | _numbers | _texts
_names = st.sampled_from(
    ["type", "name", "role", "content", "text", "function", "schema", "json_schema", "1", "x"]
)
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=3),
    max_leaves=6,
)


def made_up(path: str, fields: frozenset[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Bodies of the endpoint with a few of these fields changed at random, or nearly right."""
    content = next(name for name in GOOD[path] if name != "model")
    half_right = {
        "messages": st.lists(
            st.fixed_dictionaries(
                {"role": st.sampled_from(["user", "system", "assistant", "tool"]) | _scalars},
                optional={"content": _values, "name": _scalars, "tool_calls": _values},
            ),
            max_size=3,
        ),
        "response_format": st.fixed_dictionaries(
            {"type": st.sampled_from(["text", "json_object", "json_schema"])},
            optional={
                "json_schema": st.fixed_dictionaries(
                    {}, optional={"name": _scalars, "schema": _values}
                )
            },
        ),
        "tools": st.lists(
            st.fixed_dictionaries(
                {"function": st.fixed_dictionaries({"name": _texts}, optional={"x": _scalars})},
                optional={"type": st.just("function") | _scalars},
            ),
            max_size=2,
        ),
    }
    changes = {
        name: half_right[name] | _values if name in half_right else _values
        for name in sorted(fields | {content, "unheard_of"} - {"model"})
    }
    return st.lists(st.sampled_from(sorted(changes)), max_size=4, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: changes[name] for name in names}).map(
            lambda found: {**GOOD[path], **found}
        )
    )
