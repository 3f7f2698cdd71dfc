"""What the engine compiles before it runs a request: schemas, expressions and grammars. Pure."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

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


def grammars(body: Mapping[str, Any]) -> Iterator[Grammar]:
    """The constraints of a request of any endpoint; none for nearly every request."""
    yield from _of_format("response_format", body.get("response_format"))
    for name in ("text", "output_config"):
        if isinstance(holder := body.get(name), dict):
            yield from _of_format(name, holder.get("format"))
    outputs = body.get("structured_outputs")
    if isinstance(outputs, dict):
        yield from _of_outputs(outputs)
    tools = body.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        # Chat completions have the function in a field of its own, the others have it at hand.
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(function, dict):
            continue
        for name in ("parameters", "input_schema"):
            if isinstance(function.get(name), dict):
                yield Grammar("tools", "json", json.dumps(function[name]))


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
