"""What an operator may set for a tenant, and what each of these limits is. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from shared.errors import InvalidInputError

#: Stands for every tenant: what is set for it holds for those that have nothing of their own.
EVERY_TENANT = "*"
#: Stands for every model.
EVERY_MODEL = "*"
_MAX_WEIGHT = 1000.0


class TenantSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is set for a tenant. Where a field is None, the fleet's own settings hold.

    `weight` is the tenant's in the fair share, and `models` are the names that it sees and may
    use. The others are limits; LIMITS says of what.
    """

    weight: float | None = None
    models: tuple[str, ...] | None = None
    requests_per_minute: int | None = None
    file_requests_per_minute: int | None = None
    batches_per_hour: int | None = None
    enqueued_requests: int | None = None
    enqueued_tokens: int | None = None
    kept_batches: int | None = None
    stored_bytes: int | None = None
    event_streams: int | None = None
    downloads: int | None = None
    live_requests_per_minute: int | None = None
    live_tokens_per_minute: int | None = None
    live_calls: int | None = None
    engine_deaths_per_day: int | None = None
    webhook_endpoints: int | None = None
    custom_id_characters: int | None = None

    def over(self, other: "TenantSettings") -> "TenantSettings":
        """These, and the other's where nothing is set here."""
        mine = {
            name: value
            for name in self.__struct_fields__
            if (value := getattr(self, name)) is not None
        }
        return msgspec.structs.replace(other, **mine)

    def may_use(self, model: str) -> bool:
        """Whether the tenant sees the model of this name."""
        return self.models is None or EVERY_MODEL in self.models or model in self.models

    def usable(self, models: Mapping[str, Any]) -> Mapping[str, Any]:
        """Those of the models, by name, that the tenant sees."""
        if self.models is None or EVERY_MODEL in self.models:
            return models
        return {name: models[name] for name in self.models if name in models}


#: Each limit by its name, with what it counts.
LIMITS: Mapping[str, str] = {
    "requests_per_minute": "calls in a minute",
    "file_requests_per_minute": "those of them to `/v1/files` and `/v1/uploads`",
    "batches_per_hour": "new batches in an hour, over HTTP and the bus",
    "enqueued_requests": "requests of all running batches",
    "enqueued_tokens": "prompt tokens of all running batches, for each model",
    "kept_batches": "batches that are kept: all that run, and those that have ended",
    "stored_bytes": "bytes of files, and of the parts of uploads",
    "event_streams": "event streams that are open at once",
    "downloads": "downloads at once, of files and of results so far",
    "live_requests_per_minute": "live calls in a minute",
    "live_tokens_per_minute": "tokens of live calls in a minute: of the prompt, as far as its "
    "length tells, and the most that the answer may have",
    "live_calls": "live calls at once",
    "engine_deaths_per_day": "engines that die of the tenant's requests in a day (UTC)",
    "webhook_endpoints": "webhook endpoints",
    "custom_id_characters": "characters of a `custom_id`",
}
#: Limits that may be 0, which allows nothing.
_MAY_BE_ZERO = {
    "stored_bytes",
    "event_streams",
    "downloads",
    "live_calls",
    "engine_deaths_per_day",
    "webhook_endpoints",
}
#: Sums of these stay integers in Redis and its scripts.
_MAX_LIMIT = 2**52
#: The end of a batch is written once for each endpoint, in one step. No message has a longer
#: `custom_id`.
_MOST = {"webhook_endpoints": 50, "custom_id_characters": 512}


def changed(
    before: TenantSettings, changes: Mapping[str, Any], unset: Iterable[str] = ()
) -> TenantSettings:
    """The settings with these fields changed, and those of `unset` as the fleet's own settings say.

    Raises InvalidInputError, which names the field.
    """
    for name in unset:
        if name not in TenantSettings.__struct_fields__:
            known = ", ".join(TenantSettings.__struct_fields__)
            raise InvalidInputError(f"'{name}' is not a setting of a tenant. There are: {known}.")
        if name in changes:
            raise InvalidInputError(f"'{name}' is both set and unset.")
    for name, value in changes.items():
        _require_good(name, value)
    return msgspec.structs.replace(before, **changes, **dict.fromkeys(unset))


def _require_good(name: str, value: Any) -> None:
    if name == "weight":
        if not 0 < value <= _MAX_WEIGHT:
            raise InvalidInputError(f"weight: above 0, and at most {_MAX_WEIGHT:g}; got {value:g}.")
    elif name == "models":
        if not value or not all(value):
            raise InvalidInputError("models: name at least one model, or '*' for all.")
    else:
        least = 0 if name in _MAY_BE_ZERO else 1
        most = _MOST.get(name, _MAX_LIMIT)
        if not least <= value <= most:
            raise InvalidInputError(f"{name}: from {least} to {most}; got {value}.")


def encode(settings: TenantSettings) -> bytes:
    """The settings as S3 and Redis keep them."""
    return msgspec.json.encode(settings)


def decode(text: str | bytes) -> TenantSettings:
    """The inverse of `encode`. Fields of newer versions are left out."""
    return msgspec.json.decode(text, type=TenantSettings)


def weights(own: Mapping[str, TenantSettings], defaults: Mapping[str, float]) -> dict[str, float]:
    """The weights of tenants that have one: their own, or that of the fleet's settings."""
    given = {name: one.weight for name, one in own.items() if one.weight is not None}
    return {**defaults, **given}
