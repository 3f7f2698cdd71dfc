"""The models and pools of the fleet, as `shared.catalog_file` reads them. They never change.

Knows nothing of Ray or vLLM.
"""

import hashlib
import json
import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from shared.adapter_archive import AdapterLimits
from shared.adapters import adapter_named
from shared.architectures import tasks_of
from shared.errors import NotFoundError
from shared.openai.endpoints import ENDPOINTS, POOLING, Runner, Task, endpoints_of
from shared.openai.image_rules import ImageRule
from shared.openai.media import MediaLimits, MediaRules
from shared.openai.row_limits import MAX_ANSWERS, MAX_INPUTS, RowLimits
from shared.openai.row_rules import RowRules
from shared.starting import Starting

#: Changes with what lane jobs and engines say to each other, so that no lane job calls an engine
#: that an older version deployed.
_ENGINE_PROTOCOL = 3
#: What a pool's entry says besides what its engines are started with.
_NOT_AN_ENGINES = {"price_per_hour", "machine", "max_machines"}
#: Rows that an engine computes at once where the catalog does not say it. vLLM's own guess is too
#: low for batches.
DEFAULT_SEATS = 256
#: vLLM's number of logprobs for the whole vocabulary.
_ALL = -1
#: vLLM's `max_lora_rank`.
_LORA_RANK = 16
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$"
ModelName = Annotated[str, StringConstraints(pattern=_NAME, max_length=128)]
# No dot: it separates a lane's name from the fingerprint in the name of an application.
PoolName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=40)]


def _known_endpoint(path: str) -> str:
    if path not in ENDPOINTS:
        raise ValueError(f"there is no such endpoint; there are: {', '.join(ENDPOINTS)}")
    return path


EndpointPath = Annotated[str, AfterValidator(_known_endpoint)]

# As a URL's host is compared: lower case, without a port.
Domain = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", max_length=253)
]
Port = Annotated[int, Field(ge=1, le=65_535)]
TenantName = Annotated[str, StringConstraints(pattern=r"^(\*|[A-Za-z0-9][A-Za-z0-9._-]*)$")]

#: Fields of a body that the worker sets.
_WORKERS_FIELDS = frozenset({"cache_salt", "priority", "request_id"})


def _not_the_workers(field: str) -> str:
    if field in _WORKERS_FIELDS:
        raise ValueError("the worker sets this field, so it cannot be opened")
    return field


FieldName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=64),
    AfterValidator(_not_the_workers),
]


@dataclass(frozen=True, order=True)
class Lane:
    """One model on one pool."""

    model: str
    pool: str

    @property
    def name(self) -> str:
        """Unique, and safe in Redis keys, URL paths, Ray job ids and Serve application names."""
        return f"{slug(self.model)}@{self.pool}"


class _Strict(BaseModel):
    # Without infinity and such: an entry travels as JSON, which has neither.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Pool(_Strict):
    """The machines of one family, and what an engine's worker asks Ray for to get one of them."""

    accelerator_type: str | None = None
    resources: dict[str, Annotated[float, Field(gt=0)]] = {}
    label_selector: dict[str, str] = {}
    price_per_hour: float = Field(default=0, ge=0)
    #: What the largest machine of the pool has, and how many machines there are at most; unknown if
    #: empty. Only `worker check` looks at them.
    machine: dict[str, Annotated[float, Field(gt=0)]] = {}
    max_machines: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _asks_for_something(self) -> Self:
        if self.accelerator_type is None and not self.resources:
            raise ValueError("a pool needs an accelerator_type or resources")
        gpus = self.resources.get("GPU", 1.0)
        if gpus > 1 and not gpus.is_integer():
            raise ValueError(f"GPU is {gpus:g}: it is a part of one GPU, or a number of whole ones")
        return self


def _number_as_text(value: object) -> object:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number else value


def without_nulls(arguments: dict[str, Any]) -> dict[str, Any]:
    """An argument that is null is left to whoever chooses it where nobody says it."""
    return {name: value for name, value in arguments.items() if value is not None}


class LiveCalls(_Strict):
    """How a model takes live calls, besides rows of batches."""

    #: How long a call may wait for an engine that has to start.
    wait_seconds: float = Field(default=30, ge=0, le=600)
    #: What calls are to have while batches run beside them: until the first token, and from one
    #: token to the next.
    ttft_ms: float = Field(default=1000, gt=0)
    tpot_ms: float = Field(default=100, gt=0)
    #: Of each engine, in addition to those of batches.
    seats: int | None = Field(default=None, ge=1)
    #: At most this part of an engine's seats and KV cache stays free because calls came of late.
    reserve: float = Field(default=0.5, ge=0, lt=1)
    #: Whether batches give way also when the window of one closes within so many seconds.
    near_deadline: Literal["batches_yield", "live_yields"] = "batches_yield"
    deadline_seconds: float = Field(default=900, ge=0)
    #: The first and the last of the ports of which each engine of a machine takes one.
    ports: tuple[Port, Port] = (18_800, 18_899)

    @model_validator(mode="after")
    def _ports_are_a_range(self) -> Self:
        if self.ports[0] > self.ports[1]:
            raise ValueError(f"ports: {self.ports[0]} is above {self.ports[1]}")
        return self


class Moderation(_Strict):
    """What the labels of a model mean that classifies texts for moderation."""

    #: The score from which a category is true.
    threshold: float = Field(default=0.5, gt=0, le=1)
    #: Labels that mean no harm, in any case of letters; all others are categories.
    harmless: tuple[str, ...] = ("safe", "ok", "none", "neutral", "normal", "benign", "non-toxic")

    def is_harm(self, label: str) -> bool:
        """Whether the label is a category."""
        return label.casefold() not in {one.casefold() for one in self.harmless}


#: What a model's answers depend on.
_ANSWERING = {"source", "revision", "tasks", "chat_template", "lora", "moderation", "engine", "env"}


class TenantLora(_Strict):
    """The LoRA adapters that tenants upload for a model."""

    #: Of the file of one.
    max_bytes: int = Field(default=256 * 1024 * 1024, ge=1)
    #: How many one replica keeps at hand.
    kept: int = Field(default=16, ge=1)


class Model(_Strict):
    """One entry of `models`: where its weights are, where they may run, and how."""

    name: ModelName
    source: str = ""
    revision: str | None = None
    pools: tuple[PoolName, ...] = Field(min_length=1)
    tasks: tuple[Task, ...] = ()
    endpoints: tuple[EndpointPath, ...] = ()
    min_replicas: int = Field(default=0, ge=0)
    max_replicas: int = Field(default=1, ge=1)
    backlog_seconds: float = Field(default=300, gt=0)
    idle_seconds: float = Field(default=300, ge=0)
    spill_seconds: float = Field(default=300, ge=0)
    hang_seconds: float = Field(default=600, gt=0)
    drain_seconds: float = Field(default=30, ge=0)
    spare_seats: int | None = Field(default=None, ge=0)
    spare_kv: float = Field(default=0.05, ge=0, lt=1)
    fronts: int | None = Field(default=None, ge=1, le=64)
    max_enqueued_tokens: int | None = Field(default=None, ge=1)
    chat_template: str | None = None
    lora: dict[ModelName, str] = {}
    tenant_lora: TenantLora | None = None
    extra_fields: tuple[FieldName, ...] = ()
    row_limits: RowLimits = RowLimits()
    share_prefixes: tuple[TenantName, ...] = ()
    media_domains: tuple[Domain, ...] = ()
    media_limits: MediaLimits = MediaLimits()
    image_tokens: ImageRule | None = None
    live: LiveCalls | None = None
    moderation: Moderation | None = None
    start: Starting | None = None
    engine: Annotated[dict[str, Any], AfterValidator(without_nulls)] = {}
    env: dict[str, Annotated[str, BeforeValidator(_number_as_text)]] = {}

    @property
    def runner(self) -> Runner:
        return "pooling" if any(task in POOLING for task in self.tasks) else "generate"

    @property
    def seats(self) -> int:
        """How many rows one replica computes at once."""
        return int(self.engine.get("max_num_seqs", DEFAULT_SEATS))

    @property
    def starting(self) -> Starting:
        """How its engine starts."""
        return self.start or Starting()

    @property
    def gpus(self) -> int:
        """How many GPUs one replica has; 1 where it runs on a processor."""
        ways = ("tensor_parallel_size", "pipeline_parallel_size")
        return math.prod(_positive(self.engine.get(way)) or 1 for way in ways)

    @property
    def row_rules(self) -> RowRules:
        """What a request may ask of this model."""
        return RowRules(
            extra_fields=frozenset(self.extra_fields),
            limits=RowLimits(**{**self._fitting_limits(), **self._own_limits()}),
            media=MediaRules(domains=frozenset(self.media_domains), limits=self.media_limits),
            images=self.image_tokens,
            context=_positive(self.engine.get("max_model_len")),
        )

    def _own_limits(self) -> dict[str, Any]:
        return self.row_limits.model_dump(include=self.row_limits.model_fields_set)

    def _fitting_limits(self) -> dict[str, Any]:
        """What follows from the engine's arguments where the operator sets no limit."""
        seats = _positive(self.engine.get("max_num_seqs")) or RowLimits().sequences
        sequences = MAX_INPUTS if self.runner == "pooling" else max(seats, MAX_ANSWERS)
        logprobs = self.engine.get("max_logprobs", RowLimits().logprobs)
        if logprobs == _ALL:
            logprobs = None
        return {"sequences": sequences, "logprobs": logprobs, "prompt_logprobs": logprobs}

    @property
    def adapter_limits(self) -> AdapterLimits | None:
        """The most that a tenant's adapter may be; None if the model takes none."""
        if self.tenant_lora is None:
            return None
        rank = _positive(self.engine.get("max_lora_rank")) or _LORA_RANK
        return AdapterLimits(self.tenant_lora.max_bytes, rank)

    @property
    def served_names(self) -> tuple[str, ...]:
        """What a request may have as its `model`: the model's name and those of its adapters."""
        return (self.name, *self.lora)

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, value: Any) -> Any:
        if isinstance(value, dict) and not value.get("source"):
            return {**value, "source": value.get("name", "")}
        return value

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas {self.min_replicas} is above max_replicas {self.max_replicas}"
            )
        if len(set(self.pools)) < len(self.pools):
            raise ValueError("a pool is named twice")
        if self.tenant_lora is not None and (self.fronts or 1) > 1:
            # Each front would number the adapters itself, and the engine goes by the numbers.
            raise ValueError("tenant_lora needs `fronts: 1`")
        if not self.tasks:
            object.__setattr__(self, "tasks", tasks_of({}, self.engine))
        if not self.endpoints:
            object.__setattr__(self, "endpoints", endpoints_of(self.tasks))
        return self


class Catalog(_Strict):
    """All pools and models. `model_dump_json` passes them to other processes."""

    pools: dict[PoolName, Pool] = Field(min_length=1)
    models: dict[ModelName, Model] = Field(min_length=1)
    #: Of all prices: three letters of ISO 4217.
    currency: Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")] = "USD"

    @model_validator(mode="before")
    @classmethod
    def _name_models(cls, value: Any) -> Any:
        if not isinstance(value, dict) or not isinstance(value.get("models"), dict):
            return value
        models = {
            name: {"name": name, **entry} if isinstance(entry, dict) else entry
            for name, entry in value["models"].items()
        }
        return {**value, "models": models}

    def model(self, name: str) -> Model:
        """The entry that serves this name, which is the model's own or that of an adapter.

        Who may use a tenant's adapter is not asked here. Raises NotFoundError if there is none.
        """
        own = adapter_named(name)
        if own is not None and own.model in self.adapter_takers:
            return self.models[own.model]
        for entry in self.models.values():
            if name in entry.served_names:
                return entry
        raise NotFoundError(
            f"The model `{name}` does not exist.", param="model", code="model_not_found"
        )

    def served_names(self) -> tuple[str, ...]:
        return tuple(name for entry in self.models.values() for name in entry.served_names)

    @property
    def adapter_takers(self) -> dict[str, AdapterLimits]:
        """The models that take tenants' adapters, with the most that one may be."""
        limits = {name: model.adapter_limits for name, model in self.models.items()}
        return {name: given for name, given in limits.items() if given is not None}

    def trusting(self) -> tuple[str, ...]:
        """Names of models whose engines run code that comes with the weights."""
        return tuple(
            name for name, model in self.models.items() if model.engine.get("trust_remote_code")
        )

    def endpoints_by_name(self) -> dict[str, frozenset[str]]:
        """By each served name, the endpoints that it answers."""
        return {name: frozenset(self.model(name).endpoints) for name in self.served_names()}

    def rules_by_name(self) -> dict[str, RowRules]:
        """By each served name, what a request may ask of it."""
        rules = {model.name: model.row_rules for model in self.models.values()}
        return {name: rules[self.model(name).name] for name in self.served_names()}

    def token_quotas(self, endpoint: str | None, *, default: int) -> dict[str, int]:
        """How many prompt tokens a tenant's running batches may hold, by model.

        Only the models that serve the endpoint; all of them for None.
        """
        return {
            model.name: model.max_enqueued_tokens or default
            for model in self.models.values()
            if endpoint is None or endpoint in model.endpoints
        }

    def identity(self, name: str) -> str:
        """A digest that changes with everything in the catalog that the model's answers depend on.

        Weights that are replaced where they are do not change it. Raises NotFoundError.
        """
        model = self.model(name)
        what = [name, model.model_dump(mode="json", include=_ANSWERING)]
        if model.starting.arguments:
            what.append(model.starting.arguments)
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()

    def lane_of(self, name: str) -> Lane:
        """The lane that runs this model's requests first: its base model on its first pool."""
        return self.lanes_of(name)[0]

    def lanes_of(self, name: str) -> tuple[Lane, ...]:
        """All lanes of this model, in order of preference."""
        entry = self.model(name)
        return tuple(Lane(entry.name, pool) for pool in entry.pools)

    def lanes(self) -> tuple[Lane, ...]:
        return tuple(lane for name in self.models for lane in self.lanes_of(name))

    def live_lanes(self) -> dict[str, bool]:
        """The names of lanes that take live calls, and whether each always has an engine."""
        return {
            self.lane_of(model.name).name: model.min_replicas > 0
            for model in self.models.values()
            if model.live is not None
        }

    def lane_named(self, name: str) -> Lane:
        for lane in self.lanes():
            if lane.name == name:
                return lane
        raise NotFoundError(f"The lane `{name}` does not exist.")

    def fingerprint(self, lane: Lane) -> str:
        """Ten hex digits that change with everything that an engine is started with."""
        entry = self.model(lane.model)
        not_its_own = {
            "pools", "endpoints", "image_tokens", "max_enqueued_tokens", "spill_seconds"
        }  # fmt: skip
        what = entry.model_dump(mode="json", exclude=not_its_own)
        if what["live"] is None:
            # Nothing says that an engine takes none, so that older ones have the same digits.
            del what["live"]
        else:
            del what["live"]["wait_seconds"]
        for field in ("moderation", "start", "tenant_lora"):
            if what[field] is None:
                del what[field]
        what["protocol"] = _ENGINE_PROTOCOL
        pool = self.pools[lane.pool]
        what["pool"] = pool.model_dump(mode="json", exclude=_NOT_AN_ENGINES)
        text = json.dumps(what, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def app_name(self, lane: Lane) -> str:
        """The Serve application of this lane's engine."""
        return f"{lane.name}.{self.fingerprint(lane)}"


def _positive(value: object) -> int | None:
    """An engine argument that is a count; None where the engine decides, or reads another form."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    return None


def slug(model: str) -> str:
    """The name without what Redis keys, URLs and Ray cannot hold; two names may have the same."""
    return re.sub(r"[^A-Za-z0-9._-]+", "--", model)
