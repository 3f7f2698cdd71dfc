"""Which models are served on which pools: one YAML file, read once and never changed.

Knows nothing of Ray or vLLM; `python -m worker check` checks the names and types of `engine:`
arguments.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from shared.errors import NotFoundError, SetupError
from shared.openai.endpoints import ENDPOINTS, Runner, endpoints_of

#: Engine arguments that have a field of their own, or that the deployment decides.
RESERVED_ENGINE_ARGUMENTS: Mapping[str, str] = {
    "model": "say it as `source`",
    "served_model_name": "the model's key in this file is its name",
    "revision": "say it as `revision`",
    "chat_template": "say it as `chat_template`",
    "lora_modules": "say it as `lora`",
    "enable_lora": "follows from `lora`",
    "distributed_executor_backend": "follows from the pool",
}

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$"
ModelName = Annotated[str, StringConstraints(pattern=_NAME, max_length=128)]
# No dot: it separates a lane's name from the fingerprint in the name of an application.
PoolName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=40)]


def _known_endpoint(path: str) -> str:
    if path not in ENDPOINTS:
        raise ValueError(f"there is no such endpoint; there are: {', '.join(ENDPOINTS)}")
    return path


EndpointPath = Annotated[str, AfterValidator(_known_endpoint)]


class CatalogError(SetupError):
    """The catalog cannot be used: each problem with its file, line, field, value and reason."""


@dataclass(frozen=True, order=True)
class Lane:
    """One model on one pool."""

    model: str
    pool: str

    @property
    def name(self) -> str:
        """Safe in a Redis key, a URL's path, a Ray job's id and the name of a Serve application."""
        return f"{_slug(self.model)}@{self.pool}"


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Pool(_Strict):
    """The machines of one family, and how a worker of an engine asks Ray for one of them."""

    accelerator_type: str | None = None
    resources: dict[str, Annotated[float, Field(gt=0)]] = {}
    label_selector: dict[str, str] = {}

    @model_validator(mode="after")
    def _asks_for_something(self) -> Self:
        if self.accelerator_type is None and not self.resources:
            raise ValueError("a pool needs an accelerator_type or resources")
        return self


def _number_as_text(value: object) -> object:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number else value


class Model(_Strict):
    """One entry of `models`: where the weights are, where they may run, and how."""

    name: ModelName
    source: str = ""
    revision: str | None = None
    pools: tuple[PoolName, ...] = Field(min_length=1)
    endpoints: tuple[EndpointPath, ...] = ()
    min_replicas: int = Field(default=0, ge=0)
    max_replicas: int = Field(default=1, ge=1)
    idle_seconds: float = Field(default=300, ge=0)
    spill_seconds: float = Field(default=300, ge=0)
    hang_seconds: float = Field(default=600, gt=0)
    max_enqueued_tokens: int | None = Field(default=None, ge=1)
    chat_template: str | None = None
    lora: dict[ModelName, str] = {}
    engine: dict[str, Any] = {}
    env: dict[str, Annotated[str, BeforeValidator(_number_as_text)]] = {}

    @property
    def runner(self) -> Runner:
        return "pooling" if self.engine.get("runner") == "pooling" else "generate"

    @property
    def served_names(self) -> tuple[str, ...]:
        """What a request may write as its `model`: the name and those of the adapters."""
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
        if not self.endpoints:
            object.__setattr__(self, "endpoints", endpoints_of(self.runner))
        return self


class Catalog(_Strict):
    """All pools and models; `model_dump_json` carries them to other processes."""

    pools: dict[PoolName, Pool] = Field(min_length=1)
    models: dict[ModelName, Model] = Field(min_length=1)

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
        """The entry that serves this name, be it the model's own or an adapter's.

        Raises NotFoundError when there is none.
        """
        for entry in self.models.values():
            if name in entry.served_names:
                return entry
        raise NotFoundError(
            f"The model `{name}` does not exist.", param="model", code="model_not_found"
        )

    def served_names(self) -> tuple[str, ...]:
        return tuple(name for entry in self.models.values() for name in entry.served_names)

    def endpoints_by_name(self) -> dict[str, frozenset[str]]:
        """What each served name answers: what the line check needs to know."""
        return {name: frozenset(self.model(name).endpoints) for name in self.served_names()}

    def token_quotas(self, endpoint: str | None, *, default: int) -> dict[str, int]:
        """The most prompt tokens that a tenant's running batches may hold, by model that serves.

        None stands for any endpoint.
        """
        return {
            model.name: model.max_enqueued_tokens or default
            for model in self.models.values()
            if endpoint is None or endpoint in model.endpoints
        }

    def lane_of(self, name: str) -> Lane:
        """The lane that takes this model's requests: its base model on its first pool."""
        return self.lanes_of(name)[0]

    def lanes_of(self, name: str) -> tuple[Lane, ...]:
        """All lanes of this model, in order of preference."""
        entry = self.model(name)
        return tuple(Lane(entry.name, pool) for pool in entry.pools)

    def lanes(self) -> tuple[Lane, ...]:
        return tuple(lane for name in self.models for lane in self.lanes_of(name))

    def lane_named(self, name: str) -> Lane:
        for lane in self.lanes():
            if lane.name == name:
                return lane
        raise NotFoundError(f"The lane `{name}` does not exist.")

    def fingerprint(self, lane: Lane) -> str:
        """Ten hex digits that change when anything does that a running engine must be told."""
        entry = self.model(lane.model)
        not_its_own = {"pools", "endpoints", "max_enqueued_tokens", "spill_seconds"}
        what = entry.model_dump(mode="json", exclude=not_its_own)
        what["pool"] = self.pools[lane.pool].model_dump(mode="json")
        text = json.dumps(what, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def app_name(self, lane: Lane) -> str:
        """The Serve application of this lane's engine."""
        return f"{lane.name}.{self.fingerprint(lane)}"


def catalog_digest(path: Path) -> str:
    """Sixteen hex digits of the file, to tell whether two processes read the same one."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def load_catalog(path: Path) -> Catalog:
    """Read and check the file; every problem found is in the CatalogError's text, one a line."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CatalogError(f"{path}: cannot be read: {error.strerror}") from error
    raw, marks = _parse(path, text)
    if not isinstance(raw, dict):
        raise CatalogError(f"{path}:1: the file is empty or not a mapping")
    try:
        catalog = Catalog.model_validate(_with_resolved_paths(raw, path.parent))
    except ValidationError as error:
        raise CatalogError("\n".join(_explain(path, marks, error))) from error
    if problems := list(_cross_checks(catalog)):
        raise CatalogError(
            "\n".join(f"{path}:{marks.line(p.at)}: {_dotted(p.at)}: {p.reason}" for p in problems)
        )
    return catalog


def catalog_lines(path: Path) -> "Marks":
    """Where each field stands in the file, for those who find problems of their own."""
    return _parse(path, path.read_text(encoding="utf-8"))[1]


Where = tuple[str | int, ...]


class Marks:
    """The line, counted from 1, on which each field of a YAML file stands."""

    def __init__(self, lines: Mapping[Where, int]) -> None:
        self._lines = lines

    def line(self, at: Where) -> int:
        """That of the field, or of what surrounds it when the field itself is absent."""
        while at and at not in self._lines:
            at = at[:-1]
        return self._lines.get(at, 1)

    def has(self, at: Where) -> bool:
        return at in self._lines


class _Problem(NamedTuple):
    at: Where
    reason: str


def _parse(path: Path, text: str) -> tuple[Any, Marks]:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is None:
            return None, Marks({})
        fields = list(_walk(root, ()))
        raw = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise CatalogError(f"{path}:{line}: not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise CatalogError(f"{path}:1: not YAML: {error}") from error
    lines: dict[Where, int] = {}
    for at, line in fields:
        if at in lines:
            raise CatalogError(
                f"{path}:{line}: {_dotted(at)}: written twice, first on line {lines[at]}"
            )
        lines[at] = line
    return raw, Marks(lines)


def _walk(node: yaml.Node, at: Where) -> Iterator[tuple[Where, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*at, str(key.value))
            yield here, key.start_mark.line + 1
            yield from _walk(value, here)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            here = (*at, index)
            yield here, value.start_mark.line + 1
            yield from _walk(value, here)


def _with_resolved_paths(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """`./x`, `../x` and `~/x` are paths, relative to the catalog; anything else is left alone."""

    def resolved(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value.startswith("~/"):
            return str(Path(value).expanduser())
        return str((folder / value).resolve()) if value.startswith(("./", "../")) else value

    models = raw.get("models")
    if not isinstance(models, dict):
        return raw
    entries = {}
    for name, entry in models.items():
        if not isinstance(entry, dict):
            entries[name] = entry
            continue
        changed = {k: resolved(entry[k]) for k in ("source", "chat_template") if k in entry}
        if isinstance(lora := entry.get("lora"), dict):
            changed["lora"] = {adapter: resolved(where) for adapter, where in lora.items()}
        entries[name] = {**entry, **changed}
    return {**raw, "models": entries}


def _explain(path: Path, marks: Marks, error: ValidationError) -> Iterator[str]:
    for problem in error.errors(include_url=False):
        at = tuple(problem["loc"])
        if at and at[-1] == "[key]":
            at = at[:-1]
        if at and at[-1] == "name" and not marks.has(at):
            continue  # the key itself is the name, and is reported as such
        value = problem["input"]
        shown = "" if isinstance(value, dict | list) else f" (value: {value!r})"
        reason = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            reason, shown = "there is no such field", ""
        yield f"{path}:{marks.line(at)}: {_dotted(at) or 'the file'}: {reason}{shown}"


def _cross_checks(catalog: Catalog) -> Iterator[_Problem]:
    """What no field can know alone: pools exist, and no name means two things."""
    served: dict[str, str] = {}
    lanes: dict[str, str] = {}
    for name, entry in catalog.models.items():
        at = ("models", name)
        if entry.name != name:
            yield _Problem((*at, "name"), "leave it out: the key is the name")
        for index, pool in enumerate(entry.pools):
            if pool not in catalog.pools:
                known = ", ".join(catalog.pools)
                yield _Problem((*at, "pools", index), f"no pool `{pool}`; there are: {known}")
        for argument, instead in RESERVED_ENGINE_ARGUMENTS.items():
            if argument in entry.engine:
                yield _Problem((*at, "engine", argument), f"may not be set here: {instead}")
        for alias in entry.served_names:
            if alias in served:
                here = at if alias == name else (*at, "lora", alias)
                yield _Problem(here, f"the name `{alias}` is taken by model `{served[alias]}`")
            served.setdefault(alias, name)
        if lanes.setdefault(_slug(name), name) != name:
            yield _Problem(at, f"too like `{lanes[_slug(name)]}`: both would be `{_slug(name)}`")


def _dotted(at: Where) -> str:
    return ".".join(str(step) for step in at)


def _slug(model: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "--", model)
