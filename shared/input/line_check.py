"""What is wrong with one line of an input, whatever it holds. Pure."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from shared.input.name_set import NameSet
from shared.input.problems import DECODE_ERRORS, Problems, shortened
from shared.input.request_lines import mended
from shared.openai.endpoints import CONTENTS, ENDPOINTS

#: A line has fewer problems.
_MAX_PROBLEMS = 16
#: What the check of any line looks at in a body, whatever it holds.
_Body = msgspec.defstruct(
    "_Body",
    [
        ("model", Any, msgspec.UNSET),
        *((name, msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for name in sorted(CONTENTS)),
    ],
)


_Line: Any = msgspec.defstruct(
    "_Line", [("custom_id", str), ("method", str), ("url", str), ("body", _Body)]
)


@dataclass
class LineCheck:
    """Checks lines one by one, and remembers what later lines are compared with."""

    endpoint: str
    #: By each model's name, the endpoints that it serves.
    models: Mapping[str, AbstractSet[str]]
    #: Whether each line may name its own model and endpoint.
    is_mixed: bool
    custom_id_characters: int
    custom_ids: NameSet = field(default_factory=NameSet)
    models_seen: set[str] = field(default_factory=set)
    #: Endpoint and model of the last line that named both correctly.
    last: tuple[str, str] | None = None
    #: What is wrong with the line that was checked last.
    problems: Problems = field(default_factory=lambda: Problems(_MAX_PROBLEMS))
    _decoder: msgspec.json.Decoder[Any] = field(default_factory=lambda: msgspec.json.Decoder(_Line))

    def check(self, number: int, line: bytes) -> Any | None:
        """Find all problems of the line; returns the request that it is, good or bad."""
        self.problems = Problems(_MAX_PROBLEMS)
        try:
            line.decode()
            request = self._decode(line)
        except DECODE_ERRORS:
            self.problems.add_malformed(number, line)
            return None
        if not request.custom_id:
            self.problems.add_missing(number, "custom_id")
        elif len(request.custom_id) > self.custom_id_characters:
            self.problems.add_long_name(number, request.custom_id, self.custom_id_characters)
        elif not self.custom_ids.add(request.custom_id):
            self.problems.add_duplicate(number, request.custom_id)
        if request.method != "POST":
            self.problems.add_unsupported(number, "method", request.method, ("POST",))
        url = request.url if self.is_mixed else self.endpoint
        if url not in ENDPOINTS:
            self.problems.add_unsupported(number, "url", url, tuple(ENDPOINTS))
        elif request.url != url:
            self.problems.add(
                "invalid_url",
                number,
                "url",
                "The URL provided for this request does not match the batch endpoint.",
            )
        self._check_model(number, request.body.model, url)
        self._check_content(number, request.body, url)
        return request

    def forget_model(self) -> None:
        """Let a later line say which model all lines are for."""
        self.models_seen.clear()
        self.last = None

    def _decode(self, line: bytes) -> Any:
        try:
            return self._decoder.decode(line)
        except msgspec.DecodeError:
            return self._decoder.decode(mended(line))

    def _check_content(self, number: int, body: Any, url: str) -> None:
        endpoint = ENDPOINTS.get(url)
        if endpoint is None or not endpoint.is_openais:
            return
        given = {name for name in CONTENTS if getattr(body, name) is not msgspec.UNSET}
        if not endpoint.has_content(given):
            self.problems.add(
                "invalid_request",
                number,
                f"body.{endpoint.content}",
                f"{endpoint.content.capitalize()} parameter is required.",
            )

    def _check_model(self, number: int, model: object, url: str) -> None:
        if (problem := model_problem(model, url, self.models)) is not None:
            self.problems.add(problem.code, number, "body.model", problem.message)
        elif not isinstance(model, str) or url not in ENDPOINTS:
            # The address is reported already.
            return
        elif self.is_mixed or model in self.models_seen or not self.models_seen:
            self.models_seen.add(model)
            self.last = url, model
        else:
            self.problems.add(
                "mismatched_model",
                number,
                "body.model",
                f"The model '{model}' for this request does not match the rest of the batch. Each "
                "batch must contain requests for a single model.",
            )


class ModelProblem(NamedTuple):
    """Why a request's model is none."""

    code: str
    message: str


def model_problem(
    model: object, url: str, models: Mapping[str, AbstractSet[str]]
) -> ModelProblem | None:
    """What is wrong with a request's model; None if it is one, and serves the endpoint."""
    if not isinstance(model, str) or not model:
        return ModelProblem("invalid_request", "Model parameter is required.")
    if model not in models:
        text = f"The provided model '{shortened(model)}' is not supported by the Batch API."
        return ModelProblem("model_not_found", text)
    if url in ENDPOINTS and url not in models[model]:
        return ModelProblem("model_not_found", f"The model '{model}' does not serve {url}.")
    return None
