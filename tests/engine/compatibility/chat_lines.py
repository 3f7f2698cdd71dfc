"""Chat completions of the model that writes. Pure."""

from typing import Any

from tests.engine.compatibility.line import ADAPTER, CLOCK, HI, MOOD, UNIT, WEATHER, Line, chat

_NAMED = {"type": "function", "function": {"name": "weather"}}
_DESCRIPTION: dict[str, Any] = {"name": "weather", "parameters": UNIT, "strict": True}
_ASKED: list[dict[str, Any]] = [
    *HI,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"unit": "kelvin"}'},
            }
        ],
    },
]


def _says(content: Any, role: Any = "user") -> list[dict[str, Any]]:
    return [{"role": role, "content": content}]


def _nested(depth: int) -> list[Any]:
    return [_nested(depth - 1)] if depth else []


def _form(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **fields}}


def _outputs(name: str, **fields: Any) -> Line:
    return chat("structured outputs", name, max_tokens=24, **fields)


_PLAIN = (
    chat("messages", "plain"),
    chat("messages", "a system", messages=[*_says("Be brief.", "system"), *HI]),
    chat("messages", "a developer", messages=[*_says("Be brief.", "developer"), *HI]),
    chat("messages", "several turns", messages=[*HI, *_says("Sure.", "assistant"), *HI]),
    chat("messages", "parts of text", messages=_says([{"type": "text", "text": "a"}] * 3)),
    chat("messages", "a name", messages=[{**HI[0], "name": "Ada"}]),
    chat("messages", "of the assistant alone", messages=_says("Well,", "assistant")),
    chat("messages", "to be continued", messages=[*HI, *_says("The tr", "assistant")],
         continue_final_message=True, add_generation_prompt=False),
    chat("messages", "without a prompt for an answer", add_generation_prompt=False),
    chat("messages", "echoed", echo=True),
    chat("messages", "echoed and continued", messages=[*HI, *_says("The tr", "assistant")],
         continue_final_message=True, add_generation_prompt=False, echo=True),
    chat("messages", "none", messages=[]),
    chat("messages", "missing", messages=...),
    chat("messages", "null", messages=None),
    chat("messages", "an odd role", messages=[{"role": 7, "content": {}}]),
    chat("messages", "a role of nobody", messages=_says("x", "narrator")),
    chat("messages", "empty text", messages=_says("")),
    chat("messages", "no parts", messages=_says([])),
    chat("messages", "a part of no kind", messages=_says([{"text": "x"}])),
    chat("messages", "a part of an unknown kind", messages=_says([{"type": "smell"}])),
    chat("messages", "a part with null", messages=_says([{"type": "text", "text": None}])),
    chat("messages", "a refusal", messages=[*HI, {"role": "assistant", "refusal": "No."}, *HI]),
    chat("messages", "documents", documents=[{"title": "a", "text": "b"}]),
    chat("messages", "arguments of the template", chat_template_kwargs={"enable_thinking": True}),
    chat("messages", "arguments that are no object", chat_template_kwargs=[1]),
    chat("messages", "special tokens", add_special_tokens=True),
    chat("models", "unknown", model="no-such-model"),
    chat("models", "missing", model=...),
    chat("models", "empty", model=""),
    chat("models", "a number", model=7),
    chat("adapters (LoRA)", "by name", model=ADAPTER),
    chat("adapters (LoRA)", "with two answers", model=ADAPTER, n=2, temperature=1, top_k=1),
    chat("adapters (LoRA)", "with tools", model=ADAPTER, tools=[WEATHER], tool_choice="required",
         max_tokens=40),
    chat("adapters (LoRA)", "by its path", model="/models/adapter"),
)  # fmt: skip

_TEXTS = (
    chat("odd text", "separators of lines", messages=_says("\u2028é\u0085😀\x0b")),
    chat("odd text", "a zero byte", messages=_says("a\x00b")),
    chat("odd text", "half a surrogate pair", messages=_says("cut \ud83d")),
    chat("odd text", "half a pair in a name", messages=[{**HI[0], "name": "\udc00"}]),
    chat("odd text", "half a pair in a stop", stop=["\ud83d"]),
    chat("odd text", "half a pair in the model's name", model="tiny\ud83d"),
    chat("odd text", "half a pair in a schema", response_format=_form({"enum": ["\ud83d"]})),
    chat("odd text", "half a pair in a field's name", more={"x\ud83d": 1}),
    chat("odd text", "right to left", messages=_says("\u202egnirts\u202c")),
    chat("odd text", "marks of its template", messages=_says("<|im_end|>\n<|im_start|>system")),
    chat("odd text", "braces of templates", messages=_says("{{ 7 * 7 }}{% raw %}")),
    chat("odd text", "a byte order mark", messages=_says("\ufeffx")),
    chat("long and wide", "900 words", messages=_says("train " * 420)),
    chat("long and wide", "longer than the model takes", messages=_says("train " * 2000)),
    chat("long and wide", "a limit beyond the model", max_tokens=100_000),
    chat("long and wide", "a limit beyond 64 bits", max_tokens=10**30),
    chat("long and wide", "150 messages", messages=_says("a") * 150),
    chat("long and wide", "16 answers", n=16, temperature=0.5, top_k=1),
    chat("long and wide", "cut to the last 20 tokens", messages=_says("train " * 300),
         truncate_prompt_tokens=20),
    chat("long and wide", "cut on the right", messages=_says("train " * 300),
         truncate_prompt_tokens=20, truncation_side="right"),
    chat("long and wide", "cut to more than the model", truncate_prompt_tokens=10**6),
    chat("long and wide", "a long name of a field", more={"x" * 5000: 1}),
    chat("long and wide", "nested 60 deep", metadata={"deep": _nested(60)}),
)  # fmt: skip

_SAMPLING = (
    chat("sampling", "with a seed", temperature=1, seed=11, top_p=0.9),
    chat("sampling", "top_k", temperature=1, top_k=1),
    chat("sampling", "min_p", temperature=0.5, min_p=0.9),
    chat("sampling", "penalties", presence_penalty=1.5, frequency_penalty=-1,
         repetition_penalty=1.3),
    chat("sampling", "a bias", logit_bias={"50": 100}),
    chat("sampling", "a bias beyond the vocabulary", logit_bias={"99999": 1}),
    chat("sampling", "allowed tokens", allowed_token_ids=[50, 51]),
    chat("sampling", "no allowed tokens", allowed_token_ids=[]),
    chat("sampling", "allowed tokens beyond the vocabulary", allowed_token_ids=[10**6]),
    chat("sampling", "bad words", bad_words=["the", "train"]),
    chat("sampling", "out of range", temperature=-3),
    chat("sampling", "hot", temperature=2.5),
    chat("sampling", "of the wrong type", temperature="warm"),
    chat("sampling", "as text", temperature="0.0"),
    chat("sampling", "a bool", temperature=True, top_k=1),
    chat("sampling", "null", temperature=None, top_p=None, seed=None, top_k=1),
    chat("sampling", "a seed beyond 64 bits", seed=2**70),
    chat("sampling", "a negative seed", seed=-1),
    chat("sampling", "beams", use_beam_search=True, n=2),
    chat("limits of tokens", "max_completion_tokens", max_tokens=..., max_completion_tokens=3),
    chat("limits of tokens", "both", max_tokens=9, max_completion_tokens=3),
    chat("limits of tokens", "at least", min_tokens=6),
    chat("limits of tokens", "at least more than at most", min_tokens=9),
    chat("limits of tokens", "none", max_tokens=0),
    chat("limits of tokens", "less than none", max_tokens=-1),
    chat("limits of tokens", "half a token", max_tokens=2.5),
    chat("limits of tokens", "a whole decimal", max_tokens=3.0),
    chat("limits of tokens", "as text", max_tokens="5"),
    chat("limits of tokens", "a bool", max_tokens=True),
    chat("limits of tokens", "a list", max_tokens=[5]),
    chat("stop", "a word", stop="e", max_tokens=24),
    chat("stop", "words", stop=["e", "a"], max_tokens=24),
    chat("stop", "a word that stays", stop=["e"], include_stop_str_in_output=True, max_tokens=24),
    chat("stop", "tokens", stop_token_ids=list(range(3, 400)), max_tokens=24),
    chat("stop", "tokens as text", stop_token_ids=["5"]),
    chat("stop", "an empty word", stop=[""]),
    chat("stop", "twenty words", stop=[f"word {number}" for number in range(20)]),
    chat("stop", "past the end", ignore_eos=True),
    chat("several answers", "two", n=2, temperature=1, top_k=1),
    chat("several answers", "two that are greedy", n=2),
    chat("several answers", "none", n=0),
    chat("several answers", "as text", n="2", temperature=1, top_k=1),
    chat("several answers", "a million", n=10**6, temperature=1),
    chat("logprobs", "of the answer", logprobs=True, top_logprobs=3),
    chat("logprobs", "without others", logprobs=True),
    chat("logprobs", "more than allowed", logprobs=True, top_logprobs=50),
    chat("logprobs", "of all", logprobs=True, top_logprobs=-1),
    chat("logprobs", "others alone", top_logprobs=2),
    chat("logprobs", "of the prompt", prompt_logprobs=1),
    chat("logprobs", "as ids", logprobs=True, return_tokens_as_token_ids=True),
    chat("logprobs", "of two answers", logprobs=True, top_logprobs=1, n=2, temperature=1, top_k=1),
    chat("answers in other forms", "token ids", return_token_ids=True),
    chat("answers in other forms", "the prompt", return_prompt_text=True),
    chat("answers in other forms", "with special tokens", skip_special_tokens=False),
    chat("streams", "yes", stream=True),
    chat("streams", "a word for yes", stream="yes"),
    chat("streams", "a word for no", stream="no"),
    chat("streams", "perhaps", stream="perhaps"),
    chat("streams", "options alone", stream_options={"include_usage": True}),
)  # fmt: skip

_TOOLS = (
    chat("tools", "auto", tools=[WEATHER], tool_choice="auto"),
    chat("tools", "not said", tools=[WEATHER]),
    chat("tools", "none", tools=[WEATHER], tool_choice="none"),
    chat("tools", "required", tools=[WEATHER], tool_choice="required", max_tokens=60),
    chat("tools", "required of two", tools=[WEATHER, CLOCK], tool_choice="required",
         max_tokens=60),
    chat("tools", "named", tools=[WEATHER, CLOCK], tool_choice=_NAMED, max_tokens=60),
    chat("tools", "named, cut off", tools=[WEATHER], tool_choice=_NAMED, max_tokens=3),
    chat("tools", "a name of nothing", tools=[WEATHER],
         tool_choice={"type": "function", "function": {"name": "nothing"}}),
    chat("tools", "a choice without tools", tool_choice="auto"),
    chat("tools", "required without tools", tool_choice="required"),
    chat("tools", "an unknown choice", tools=[WEATHER], tool_choice="perhaps"),
    chat("tools", "a choice that is a number", tools=[WEATHER], tool_choice=1),
    chat("tools", "allowed tools", tools=[WEATHER],
         tool_choice={"type": "allowed_tools", "mode": "auto", "tools": [_NAMED]}),
    chat("tools", "a choice of null", tools=[WEATHER], tool_choice=None),
    chat("tools", "an empty list", tools=[]),
    chat("tools", "an empty list and a choice", tools=[], tool_choice="auto"),
    chat("tools", "one at a time", tools=[WEATHER], tool_choice="required",
         parallel_tool_calls=False, max_tokens=60),
    chat("tools", "strict", max_tokens=60, tool_choice="required",
         tools=[{"type": "function", "function": _DESCRIPTION}]),
    chat("tools", "a schema of no kind", tool_choice="required",
         tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "objekt"}}}]),
    chat("tools", "no schema", tool_choice="required", max_tokens=24,
         tools=[{"type": "function", "function": {"name": "f"}}]),
    chat("tools", "a name with blanks", tools=[{"type": "function", "function": {"name": "a b"}}]),
    chat("tools", "of another kind", tools=[{"type": "web_search"}]),
    chat("tools", "the same name twice", tools=[WEATHER, WEATHER], tool_choice="required",
         max_tokens=40),
    chat("tools", "an answer of one", tools=[WEATHER], messages=[
        *_ASKED, {"role": "tool", "tool_call_id": "call_1", "content": "21"}]),
    chat("tools", "an answer to nothing", tools=[WEATHER], messages=[
        *HI, {"role": "tool", "tool_call_id": "call_9", "content": "21"}]),
    chat("tools", "arguments that are no JSON", messages=[
        *HI, {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {
            "name": "f", "arguments": "{oh"}}]}]),
    chat("tools", "arguments that are an object", messages=[
        *HI, {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {
            "name": "f", "arguments": {"a": 1}}}]}]),
    chat("tools", "calls without a function", messages=[
        *HI, {"role": "assistant", "tool_calls": [{"id": "a", "type": "function"}]}]),
    chat("tools", "with a form of the answer", tools=[WEATHER], tool_choice="required",
         response_format=_form(MOOD), max_tokens=40),
    chat("tools", "with a structured output", tools=[WEATHER], tool_choice="required",
         structured_outputs={"choice": ["a", "b"]}),
    chat("tools", "with several answers", tools=[WEATHER], tool_choice="required", n=2,
         temperature=1, top_k=1, max_tokens=40),
    chat("tools", "with logprobs", tools=[WEATHER], tool_choice=_NAMED, logprobs=True,
         top_logprobs=1, max_tokens=40),
)  # fmt: skip

_OUTPUTS = (
    _outputs("a schema", response_format=_form(MOOD)),
    _outputs("a strict schema", response_format=_form(MOOD, strict=True)),
    _outputs("a schema of no kind", response_format=_form({"type": "objekt"})),
    _outputs("a schema that is true", response_format=_form(True)),
    _outputs("a schema that refers to itself", response_format=_form(
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}})),
    _outputs("a schema that refers to nothing", response_format=_form({"$ref": "#/$defs/none"})),
    _outputs("a schema with a pattern", response_format=_form(
        {"type": "string", "pattern": "^[ab]{3}$"})),
    _outputs("a schema with a wrong pattern", response_format=_form(
        {"type": "string", "pattern": "(["})),
    _outputs("a schema with multipleOf", response_format=_form(
        {"type": "integer", "multipleOf": 3})),
    _outputs("a schema without a name", response_format={
        "type": "json_schema", "json_schema": {"schema": MOOD}}),
    _outputs("any object", response_format={"type": "json_object"}),
    _outputs("text", response_format={"type": "text"}),
    _outputs("an unknown form", response_format={"type": "xml"}),
    _outputs("a structural tag", response_format={
        "type": "structural_tag", "structures": [{"begin": "<a>", "schema": MOOD, "end": "</a>"}],
        "triggers": ["<a>"]}),
    _outputs("choices", structured_outputs={"choice": ["yes", "no"]}),
    _outputs("no choices", structured_outputs={"choice": []}),
    _outputs("a choice that is a number", structured_outputs={"choice": [1]}),
    _outputs("a pattern", structured_outputs={"regex": "[0-9]{3}"}),
    _outputs("a wrong pattern", structured_outputs={"regex": "([0-9"}),
    _outputs("a pattern that looks behind", structured_outputs={"regex": "(?<=a)b"}),
    _outputs("a grammar", structured_outputs={"grammar": 'root ::= "yes" | "no"'}),
    _outputs("a wrong grammar", structured_outputs={"grammar": "root ::= nothing"}),
    _outputs("a schema of vLLM's", structured_outputs={"json": MOOD}),
    _outputs("a schema as text", structured_outputs={"json": '{"type": "boolean"}'}),
    _outputs("a schema as text that is none", structured_outputs={"json": "{"}),
    _outputs("an object of vLLM's", structured_outputs={"json_object": True}),
    _outputs("nothing", structured_outputs={}),
    _outputs("two at once", structured_outputs={"choice": ["a"], "regex": "a"}),
    _outputs("beside a form", structured_outputs={"choice": ["a", "b"]},
             response_format={"type": "json_object"}),
    _outputs("an unknown kind", structured_outputs={"rhyme": True}),
    _outputs("with several answers", structured_outputs={"choice": ["yes", "no"]}, n=2,
             temperature=1, top_k=1),
    _outputs("with beams", structured_outputs={"choice": ["yes", "no"]}, use_beam_search=True),
    _outputs("with forced tokens", structured_outputs={"choice": ["yes", "no"]},
             allowed_token_ids=[50]),
    _outputs("with at least more tokens", structured_outputs={"choice": ["yes", "no"]},
             min_tokens=20),
    _outputs("by a former name: choice", guided_choice=["yes", "no"]),
    _outputs("by a former name: regex", guided_regex="[0-9]{3}"),
    _outputs("by a former name: json", guided_json=MOOD),
    _outputs("by a former name: grammar", guided_grammar='root ::= "yes"'),
)  # fmt: skip

_REASONING = (
    chat("reasoning", "an effort", reasoning_effort="low"),
    chat("reasoning", "no effort", reasoning_effort="none"),
    chat("reasoning", "an unknown effort", reasoning_effort="huge"),
    chat("reasoning", "left out", include_reasoning=False),
    chat("reasoning", "a budget", thinking_token_budget=5),
    chat("reasoning", "in an earlier turn", messages=[
        *HI, {"role": "assistant", "reasoning": "Hm.", "content": "Sure."}, *HI]),
)  # fmt: skip

_FIELDS = (
    chat("unknown fields", "one", unheard_of={"a": [1]}),
    chat("unknown fields", "an empty one", unheard_of=None),
    chat("unknown fields", "of OpenAI's", user="u", metadata={"a": "b"}, store=False,
         service_tier="auto", prompt_cache_key="k", safety_identifier="s", verbosity="low"),
    chat("unknown fields", "sound", modalities=["text", "audio"], audio={"voice": "a"}),
    chat("unknown fields", "a search", web_search_options={}),
    chat("unknown fields", "a prediction", prediction={"type": "content", "content": "x"}),
    chat("unknown fields", "functions", functions=[{"name": "f"}], function_call="auto"),
    chat("unknown fields", "a prompt", prompt="x"),
)  # fmt: skip


def _both(name: str, **fields: Any) -> Line:
    return chat("combinations", name, **{"max_tokens": 24, **fields})


_YES_OR_NO = {"choice": ["yes", "no"]}
_COMBINATIONS = (
    _both("a schema and more tokens than it has", response_format=_form(MOOD), min_tokens=22),
    _both("a schema and other tokens", response_format=_form(MOOD), allowed_token_ids=[50, 51]),
    _both("a schema and bad words", response_format=_form(MOOD), bad_words=["mood", "{"]),
    _both("a schema and a bias against it", response_format=_form(MOOD),
          logit_bias={str(token): -100 for token in range(3, 300)}),
    _both("a schema and a stop", response_format=_form(MOOD), stop=["mood"]),
    _both("a schema and stop tokens", response_format=_form(MOOD),
          stop_token_ids=list(range(3, 100))),
    _both("a schema and no end", response_format=_form(MOOD), ignore_eos=True),
    _both("a schema and logprobs of all", response_format=_form(MOOD), logprobs=True,
          top_logprobs=20),
    _both("a schema and penalties", response_format=_form(MOOD), repetition_penalty=1.9,
          presence_penalty=2),
    _both("a schema and one token", response_format=_form(MOOD), max_tokens=1),
    _both("a schema and an echo", response_format=_form(MOOD), echo=True),
    _both("a schema and tokens as ids", response_format=_form(MOOD), return_token_ids=True),
    _both("a schema and a prompt that ends with an answer", response_format=_form(MOOD),
          messages=[*HI, *_says("{", "assistant")], continue_final_message=True,
          add_generation_prompt=False),
    _both("tools and other tokens", tools=[WEATHER], tool_choice="required",
          allowed_token_ids=[50]),
    _both("tools and more tokens than there are", tools=[WEATHER], tool_choice=_NAMED,
          min_tokens=24),
    _both("tools and a stop", tools=[WEATHER], tool_choice=_NAMED, stop=["unit"]),
    _both("tools and bad words", tools=[WEATHER], tool_choice="required", bad_words=["{", "["]),
    _both("tools and an echo", tools=[WEATHER], tool_choice="required", echo=True),
    _both("tools and a system of parts", tools=[WEATHER], messages=[
        {"role": "system", "content": [{"type": "text", "text": "a"}]}, *HI]),
    _both("choices and other tokens", structured_outputs=_YES_OR_NO, allowed_token_ids=[50]),
    _both("choices and no allowed end", structured_outputs=_YES_OR_NO, ignore_eos=True,
          min_tokens=24),
    _both("choices and a bad word among them", structured_outputs=_YES_OR_NO,
          bad_words=["yes", "no", "y", "n"]),
    _both("allowed tokens and bad words", allowed_token_ids=[50], bad_words=["the"]),
    _both("allowed tokens and a bias", allowed_token_ids=[50], logit_bias={"51": 100}),
    _both("allowed tokens, none of them the end", allowed_token_ids=[50], min_tokens=24),
    _both("more tokens and a stop", min_tokens=20, stop=["e"]),
    _both("logprobs of chosen tokens", logprobs=True, logprob_token_ids=[5, 6]),
    _both("logprobs of chosen tokens and others", logprobs=True, top_logprobs=2,
          logprob_token_ids=[5, 6]),
    _both("logprobs of tokens beyond the vocabulary", logprobs=True,
          logprob_token_ids=[10**6]),
    _both("logprobs of the prompt and two answers", prompt_logprobs=1, n=2, temperature=1,
          top_k=1),
    _both("a budget of thought and a schema", thinking_token_budget=4,
          response_format=_form(MOOD)),
    _both("half a pair in a bad word", bad_words=["\ud83d"]),
    _both("half a pair in a choice", structured_outputs={"choice": ["\ud83d"]}),
    _both("half a pair in a pattern", structured_outputs={"regex": "\ud83d"}),
    _both("half a pair in a tool's name", tools=[
        {"type": "function", "function": {"name": "\ud83d"}}]),
    _both("half a pair in a tool's description", tools=[
        {"type": "function", "function": {"name": "f", "description": "\ud83d"}}]),
    _both("half a pair in an argument of the template", chat_template_kwargs={"a": "\ud83d"}),
    _both("half a pair in what it calls the tool", tools=[WEATHER], messages=[
        *HI, {"role": "tool", "tool_call_id": "\ud83d", "content": "x"}]),
    _both("half a pair in metadata", metadata={"a": "\ud83d"}),
    _both("cut to nothing", truncate_prompt_tokens=0),
    _both("cut to one token", truncate_prompt_tokens=1),
    _both("an answer to be continued that is none", continue_final_message=True,
          add_generation_prompt=False),
    _both("a penalty beyond all numbers", repetition_penalty=1e308),
    _both("a bias beyond all numbers", logit_bias={"50": 1e308}),
    _both("a temperature next to nothing", temperature=1e-300),
    _both("a chance next to nothing", temperature=1, top_p=1e-300),
    _both("an enumeration of one word", response_format=_form({"enum": ["a"]}), n=2,
          temperature=1, top_k=1),
    _both("an enumeration of nothing", response_format=_form({"enum": []})),
    _both("a schema of a number that is too large", response_format=_form(
        {"type": "integer", "minimum": 10**30})),
    _both("a schema that nothing fits", response_format=_form(
        {"type": "string", "minLength": 5, "maxLength": 2})),
    _both("a schema that is false", response_format=_form(False)),
    _both("a schema that is null", response_format=_form(None)),
    _both("a schema that is a list", response_format=_form([MOOD])),
    _both("a schema of any type", response_format=_form({"type": ["string", "null"]})),
    _both("a schema with a name that is a number", response_format={
        "type": "json_schema", "json_schema": {"name": 5, "schema": MOOD}}),
)  # fmt: skip

LINES: tuple[Line, ...] = (
    *_PLAIN, *_TEXTS, *_SAMPLING, *_TOOLS, *_OUTPUTS, *_REASONING, *_FIELDS, *_COMBINATIONS,
)  # fmt: skip
