"""What a live call asks for, checked by the rules that rows of batches have. Pure."""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

from shared.adapters import adapter_named
from shared.catalog import Catalog, LiveCalls
from shared.errors import InvalidInputError, NotFoundError
from shared.input_places import InputPlaces
from shared.openai.bodies import Refusal, read_body
from shared.openai.endpoints import ENDPOINTS, Endpoint
from shared.openai.media import Medium, wanted_media
from shared.openai.media_tokens import media_prediction
from shared.openai.row_limits import int_of, sequences
from shared.openai.row_rules import RowRules
from shared.tenant_rules import TenantRules

#: Characters of a prompt for each token, about.
_CHARACTERS_A_TOKEN = 4
#: What a request counts that sets no limit for its answer.
_USUAL_ANSWER = 1024
_MAX_SHOWN = 64


class LiveModel(NamedTuple):
    """What is known of a served name. `live` is None if its model takes no live calls."""

    lane: str
    endpoints: frozenset[str]
    rules: RowRules
    live: LiveCalls | None
    share_prefixes: tuple[str, ...]
    takes_adapters: bool = False


class LiveRequest(NamedTuple):
    """A call that its model may answer."""

    model: LiveModel
    #: Media that have to be fetched, each in its place of the body.
    wanted: tuple[Medium, ...]
    #: What the call counts against the tenant's tokens a minute.
    tokens: int


class LiveModels:
    """The names that live calls may use."""

    def __init__(self, models: Mapping[str, LiveModel], rules: TenantRules) -> None:
        self._models = models
        self._rules = rules

    @classmethod
    def of(cls, catalog: Catalog, places: InputPlaces) -> Self:
        """Those of the catalog; `places` are those of all tenants."""
        models = {name: _live_model(catalog, name) for name in catalog.served_names()}
        return cls(models, TenantRules(catalog, places))

    def read(
        self,
        path: str,
        body: Mapping[str, Any],
        may_use: Callable[[str], bool],
        *,
        tenant: str,
        is_own: bool = False,
    ) -> LiveRequest:
        """The request of a tenant's body. Raises InvalidInputError and NotFoundError.

        `is_own` says that it names an adapter of its tenant's.
        """
        name = body.get("model")
        if not isinstance(name, str) or not name:
            raise InvalidInputError("you must provide a model parameter", param="model")
        own = adapter_named(name) if is_own else None
        known_as = own.model if own else name
        model = self._models.get(known_as) if may_use(known_as) else None
        if model is None or (own and not model.takes_adapters):
            raise NotFoundError(
                f"The model `{name[:_MAX_SHOWN]}` does not exist or you do not have access to it.",
                param="model",
                code="model_not_found",
            )
        if model.live is None or path not in model.endpoints:
            raise NotFoundError(
                f"The model `{name}` takes no live calls to {path}. "
                + ("Use a batch." if model.live is None else _served(model)),
                param="model",
                code="model_not_live",
            )
        endpoint = ENDPOINTS[path]
        _require_good(endpoint, self._rules.of(tenant)[known_as], body)
        return LiveRequest(model, wanted_media(body), _tokens(endpoint, model, body))


def object_of(text: bytes) -> dict[str, Any]:
    """The object that a call's body is. Raises InvalidInputError."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidInputError("The body of the call is not JSON.") from None
    if not isinstance(body, dict):
        raise InvalidInputError("The body of the call is not a JSON object.")
    return body


def _live_model(catalog: Catalog, name: str) -> LiveModel:
    entry = catalog.model(name)
    return LiveModel(
        catalog.lane_of(name).name,
        frozenset(entry.endpoints),
        entry.row_rules,
        entry.live,
        entry.share_prefixes,
        takes_adapters=name in catalog.adapter_takers,
    )


def _require_good(endpoint: Endpoint, rules: RowRules, body: Mapping[str, Any]) -> None:
    if not endpoint.has_content(body):
        raise InvalidInputError(
            f"you must provide a {endpoint.content} parameter", param=endpoint.content
        )
    found = rules.refusal(endpoint.path, body, is_live=True)
    if found is None and isinstance(read := read_body(endpoint.body, body), Refusal):
        found = read
    if found is not None:
        where = f"Invalid '{found.param}': " if found.param else ""
        raise InvalidInputError(f"{where}{found.message}.", param=found.param, code="invalid_value")


def _tokens(endpoint: Endpoint, model: LiveModel, body: Mapping[str, Any]) -> int:
    """Of the prompt, as its length and its media tell, and the most that the answers may have."""
    contents = [body[name] for form in endpoint.forms for name in form if name in body]
    length = sum(len(one) if isinstance(one, str) else len(json.dumps(one)) for one in contents)
    answer = 0
    if endpoint.has_output:
        given = (body.get(name) for name in endpoint.output_limits)
        usual = endpoint.default_limit or _USUAL_ANSWER
        answer = next((int_of(value, usual) for value in given if value is not None), usual)
        if (most := model.rules.max_output) is not None:
            answer = min(answer, most)
    media_length, media_tokens = media_prediction(body, model.rules.images)
    prompt = max(0, length - media_length) // _CHARACTERS_A_TOKEN + media_tokens
    return 1 + prompt + max(0, answer) * sequences(endpoint, body)


def _served(model: LiveModel) -> str:
    return f"It serves {', '.join(sorted(model.endpoints))}."
