"""What the engine compiles before it runs a request: schemas, expressions and grammars. Pure."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

#: vLLM hands schemas with this keyword to a compiler that has no limits, and that nothing tries.
_UNTRIED = '"patternProperties": '
#: The fields that have any, as they stand in a line, and how a line may spell them otherwise.
_FIELDS = tuple(
    f'"{name}"'.encode()
    for name in ("output_config", "response_format", "structured_outputs", "text", "tools")
)
_ESCAPE = b"\\u"
#: How the text of a grammar is read.
Kind = Literal["json", "regex", "ebnf", "structural_tag"]


class Grammar(NamedTuple):
    """One constraint of a request."""

    #: The field of the body that has it.
    param: str
    kind: Kind
    text: str

    @property
    def digest(self) -> bytes:
        """The same for what costs the same to compile."""
        return hashlib.blake2b(f"{self.kind}\0{self.text}".encode(), digest_size=16).digest()

    @property
    def is_untried(self) -> bool:
        """Whether vLLM compiles it in a way of which a trial says nothing."""
        return self.kind == "json" and _UNTRIED in _rewritten(self.text)


def may_have_grammars(line: bytes) -> bool:
    """Whether the request of a line in UTF-8 may have a constraint; nearly all have none."""
    return _ESCAPE in line or any(field in line for field in _FIELDS)


def grammars(body: Mapping[str, Any]) -> Iterator[Grammar]:
    """The constraints of a request of any endpoint; none for nearly every request."""
    yield from _of_format("response_format", body.get("response_format"))
    for name in ("text", "output_config"):
        if isinstance(holder := body.get(name), dict):
            yield from _of_format(name, holder.get("format"))
    outputs = body.get("structured_outputs")
    if isinstance(outputs, dict):
        yield from _of_outputs(outputs)
    functions = list(_functions(body.get("tools")))
    for _, schema in functions:
        yield Grammar("tools", "json", json.dumps(schema))
    # One that has to be called is a schema of all together, which costs more than each.
    if len(functions) > 1:
        yield Grammar("tools", "json", json.dumps(_any_call(functions)))


def _functions(tools: Any) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """Names and schemas of the functions, also of those inside namespaces."""
    for tool in tools if isinstance(tools, list) else ():
        if not isinstance(tool, dict):
            continue
        # Chat completions have the function in a field of its own, the others have it at hand.
        function = tool.get("function", tool)
        if isinstance(function, dict):
            for name in ("parameters", "input_schema"):
                if isinstance(function.get(name), dict):
                    yield function.get("name"), function[name]
        yield from _functions(tool.get("tools"))


def _any_call(functions: Sequence[tuple[Any, Mapping[str, Any]]]) -> dict[str, Any]:
    """The schema that vLLM makes of a request that has to call one of its functions."""
    calls = [
        {
            "properties": {
                "name": {"type": "string", "enum": [name]},
                "parameters": {key: value for key, value in schema.items() if key != "$defs"},
            },
            "required": ["name", "parameters"],
        }
        for name, schema in functions
    ]
    found = [schema.get("$defs") for _, schema in functions]
    definitions = {
        key: one for some in found if isinstance(some, dict) for key, one in some.items()
    }
    whole = {"type": "array", "minItems": 1, "items": {"type": "object", "anyOf": calls}}
    return {**whole, "$defs": definitions} if definitions else whole


def _rewritten(schema: str) -> str:
    """The same JSON with each name written in one way."""
    try:
        return json.dumps(json.loads(schema))
    except (ValueError, RecursionError):
        return schema


def _of_format(param: str, form: Any) -> Iterator[Grammar]:
    if not isinstance(form, dict):
        return
    if form.get("type") == "structural_tag":
        yield Grammar(param, "structural_tag", json.dumps(form))
    schema = form.get("json_schema", form)
    if isinstance(schema, dict) and isinstance(schema.get("schema"), dict):
        yield Grammar(param, "json", json.dumps(schema["schema"]))


def _of_outputs(outputs: Mapping[str, Any]) -> Iterator[Grammar]:
    name = "structured_outputs"
    schema = outputs.get("json")
    if isinstance(schema, dict | str):
        yield Grammar(name, "json", schema if isinstance(schema, str) else json.dumps(schema))
    kinds: tuple[tuple[str, Kind], ...] = (
        ("regex", "regex"),
        ("grammar", "ebnf"),
        ("structural_tag", "structural_tag"),
    )
    for field, kind in kinds:
        if isinstance(outputs.get(field), str):
            yield Grammar(name, kind, outputs[field])
    if isinstance(choice := outputs.get("choice"), list):
        choices = " | ".join(json.dumps(one) for one in choice if isinstance(one, str))
        yield Grammar(name, "ebnf", f"root ::= {choices}")
