"""What the operator lets a request of a model ask for, beside what the engine accepts. Pure.

Planning, dry runs and the engine's replica ask the same rules. A request that breaks one gets an
error as its result, and the rest of the batch runs.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from shared.openai.bodies import Refusal
from shared.openai.endpoints import ENDPOINTS, Endpoint
from shared.openai.ignored_fields import ignored_fields
from shared.openai.image_rules import ImageRule
from shared.openai.media import MediaRules, media_refusal
from shared.openai.row_limits import RowLimits, int_of

#: Characters of a client's own name of a field that a refusal repeats.
_MAX_NAME = 64
#: Fields that vLLM and OpenAI once had, which vLLM now ignores without a word, and the new names.
FORMER_NAMES: Mapping[str, str] = {
    "activation": "use_activation",
    "function_call": "tool_choice",
    "functions": "tools",
    "guided_choice": "structured_outputs.choice",
    "guided_decoding_backend": "structured_outputs",
    "guided_grammar": "structured_outputs.grammar",
    "guided_json": "structured_outputs.json",
    "guided_regex": "structured_outputs.regex",
    "guided_whitespace_pattern": "structured_outputs.whitespace_pattern",
    "normalize": "use_activation",
    "softmax": "use_activation",
    "structural_tag": "structured_outputs.structural_tag",
}
#: What pydantic reads as true.
_TRUE = frozenset({"1", "on", "t", "true", "y", "yes"})


class RowRules(BaseModel):
    """The rules of one model; `model_dump_json` passes them to its engine."""

    model_config = ConfigDict(frozen=True)

    #: Fields that are open beside those of the endpoint.
    extra_fields: frozenset[str] = frozenset()
    limits: RowLimits = RowLimits()
    media: MediaRules = MediaRules()
    #: How many tokens an image is predicted to be; None if that is not known of the model.
    images: ImageRule | None = None
    #: Tokens of a prompt and its answer together; None if only the engine knows.
    context: int | None = None

    @property
    def max_output(self) -> int | None:
        """The most tokens that one answer may have, as far as that is known here."""
        known = [limit for limit in (self.limits.max_tokens, self.context) if limit is not None]
        return min(known, default=None)

    def refusal(
        self, path: str, body: Mapping[str, Any], *, is_live: bool = False
    ) -> Refusal | None:
        """Why a request to this endpoint may not run; None if it may. Live calls may stream."""
        endpoint = ENDPOINTS[path]
        return (
            self._unknown_field(endpoint, body)
            or (None if is_live else _streaming(endpoint, body))
            or self.limits.refusal(endpoint, body)
            or media_refusal(body, self.media, extra_fields=self.extra_fields)
        )

    def ignored(self, path: str, body: Mapping[str, Any]) -> Iterator[str]:
        """The fields of a request that may run and that have no effect in it."""
        return ignored_fields(ENDPOINTS[path], body, self.extra_fields)

    def with_places(self, places: tuple[str, ...]) -> Self:
        """The rules for a tenant that may name media in these places of S3."""
        return self.model_copy(update={"media": self.media.model_copy(update={"places": places})})

    def bounded(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The body with its limits of tokens lowered to that of the model, if the model has one."""
        most, names = self.limits.max_tokens, ENDPOINTS[path].output_limits
        if most is None or not names:
            return dict(body)
        given = [name for name in names if body.get(name) is not None]
        changes = {name: most for name in given if int_of(body[name], most + 1) > most}
        return {**body, **(changes if given else {names[0]: most})}

    def _unknown_field(self, endpoint: Endpoint, body: Mapping[str, Any]) -> Refusal | None:
        for name, value in body.items():
            # An empty value says what the engine does without the field.
            if value and name not in endpoint.fields and name not in self.extra_fields:
                if (new := FORMER_NAMES.get(name)) and new.partition(".")[0] in endpoint.fields:
                    return Refusal(name, f"The engine ignores this former name. Use '{new}'")
                if name == "extra_body":
                    return Refusal(
                        name,
                        "It is an argument of OpenAI's SDK, which puts what is in it beside the "
                        "other fields of the body. Do the same",
                    )
                return Refusal(
                    name[:_MAX_NAME],
                    f"{endpoint.path} has no such field here. Leave it out, or ask the operator "
                    "to open it for this model",
                )
        if "chat_template" not in self.extra_fields:
            options = body.get("chat_template_kwargs")
            if isinstance(options, dict) and options.get("chat_template"):
                return Refusal(
                    "chat_template_kwargs.chat_template",
                    "Templates of requests are not used. Leave it out, or ask the operator to open "
                    "'chat_template' for this model",
                )
        return None


def wants_stream(endpoint: Endpoint, body: Mapping[str, Any]) -> bool:
    """Whether the engine would stream the answer; it reads "yes" and 1 as true."""
    value = body.get("stream")
    if isinstance(value, str):
        return endpoint.has_output and value.lower() in _TRUE
    return endpoint.has_output and value in (True, 1)


def _streaming(endpoint: Endpoint, body: Mapping[str, Any]) -> Refusal | None:
    if wants_stream(endpoint, body):
        return Refusal("stream", "Streaming is not supported in the Batch API. Leave it out")
    return None


#: The rules of a model for which the operator has set none.
DEFAULT_RULES = RowRules()
