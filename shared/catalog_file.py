"""Reads the catalog: one YAML file, every problem in it with its line.

Knows nothing of Ray or vLLM; `python -m worker check` checks the names and types of `engine:`
arguments.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from shared.adapters import adapter_named
from shared.architectures import tasks_of
from shared.card_share import share_problems
from shared.catalog import Catalog, Model, slug, without_nulls
from shared.errors import SetupError
from shared.openai.endpoints import Task
from shared.openai.image_rules import ImageRule, image_rule_of
from shared.starting import starting_problems

#: Engine arguments that have a field of their own, or that the deployment decides.
RESERVED_ENGINE_ARGUMENTS: Mapping[str, str] = {
    "model": "say it as `source`",
    "served_model_name": "the model's key in this file is its name",
    "revision": "say it as `revision`",
    "chat_template": "say it as `chat_template`",
    "lora_modules": "say it as `lora`",
    "allowed_media_domains": "say it as `media_domains`",
    "enable_lora": "follows from `lora` and `tenant_lora`",
}


#: The one thing that may be said of data parallelism: that there is none.
_ONE_COPY = ("data_parallel_size", 1)
#: The executor that may be asked for instead of the one that follows from the pool (ADR 52).
_WORKERS_OF_RAY = ("distributed_executor_backend", "ray")


class CatalogError(SetupError):
    """The catalog cannot be used. The text has each problem's file, line, field and reason."""


def catalog_digest(path: Path) -> str:
    """Sixteen hex digits of the file, which show whether two processes read the same one."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def load_catalog(path: Path) -> Catalog:
    """Read and check the file. The CatalogError's text has every problem, one on each line."""
    return catalog_of(path, catalog_text(path))


def catalog_text(path: Path) -> str:
    """What the file says, its ends of lines as they are. Raises CatalogError if it is not read."""
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise CatalogError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise CatalogError(f"{path}:{line}: not UTF-8: save the file in that encoding") from error


def catalog_of(path: Path, text: str) -> Catalog:
    """As `load_catalog`, if the file said this."""
    raw, marks = _parse(path, text)
    if not isinstance(raw, dict):
        raise CatalogError(f"{path}:1: the file is empty or not a mapping")
    try:
        catalog = Catalog.model_validate(_with_files_of_all(_with_resolved_paths(raw, path.parent)))
    except ValidationError as error:
        raise CatalogError("\n".join(_explain(path, marks, error))) from error
    if problems := list(_cross_checks(catalog)):
        raise CatalogError(
            "\n".join(f"{path}:{marks.line(p.at)}: {_dotted(p.at)}: {p.reason}" for p in problems)
        )
    return catalog


def catalog_lines(path: Path) -> "Marks":
    """The line of each field, for callers that find problems of their own."""
    return _parse(path, catalog_text(path))[1]


def tasks_in(folder: Path, engine: object) -> tuple[Task, ...] | None:
    """What an engine with these arguments does with the model in the folder.

    None if the folder has no `config.json` that can be read.
    """
    config = _json_in(folder / "config.json")
    if config is None:
        return None
    arguments = without_nulls(engine) if isinstance(engine, dict) else {}
    is_sentence_transformer = (folder / "modules.json").is_file()
    return tasks_of(config, arguments, is_sentence_transformer=is_sentence_transformer)


def image_rule_in(folder: Path) -> ImageRule | None:
    """How many tokens an image is for the model in the folder; None if its files do not tell."""
    config = _json_in(folder / "config.json")
    if config is None:
        return None
    # Transformers 5 writes one file for what were two.
    processor = _json_in(folder / "processor_config.json") or {}
    images = processor.get("image_processor")
    merged = {**processor, **(images if isinstance(images, dict) else {})}
    return image_rule_of(config, merged | (_json_in(folder / "preprocessor_config.json") or {}))


def _json_in(path: Path) -> dict[str, Any] | None:
    """The JSON object in the file; None if there is none."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


Where = tuple[str | int, ...]


class Marks:
    """The line of each field of a YAML file, counted from 1."""

    def __init__(self, lines: Mapping[Where, int]) -> None:
        self._lines = lines

    def line(self, at: Where) -> int:
        """The line of the field, or of what surrounds it if the field is absent."""
        while at and at not in self._lines:
            at = at[:-1]
        return self._lines.get(at, 1)

    def has(self, at: Where) -> bool:
        return at in self._lines


class _Problem(NamedTuple):
    at: Where
    reason: str


class _Loader(yaml.SafeLoader):
    """Says of a value that looks like a number or a date, and is none, where it is."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002  # PyYAML's signature
        try:
            return super().construct_object(node, deep)
        except ValueError as error:
            problem = f"{error}; put it in quotes if it is a text"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error


def _parse(path: Path, text: str) -> tuple[Any, Marks]:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is None:
            return None, Marks({})
        fields = list(_walk(root, ()))
        raw = yaml.load(text, Loader=_Loader)  # noqa: S506  # a safe loader
    except RecursionError as error:
        raise CatalogError(f"{path}:1: too deep, or an anchor that holds itself") from error
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


def _with_files_of_all(raw: dict[str, Any]) -> dict[str, Any]:
    """What the files of models say of them, of those whose folder is on this machine."""
    models = raw.get("models")
    if not isinstance(models, dict):
        return raw
    return {**raw, "models": {name: _with_files(entry) for name, entry in models.items()}}


def _with_files(entry: Any) -> Any:
    """The entry with what it leaves out and the model's folder tells."""
    if not isinstance(entry, dict) or not entry.get("source"):
        return entry
    folder = Path(str(entry["source"]))
    tasks = None if "tasks" in entry else tasks_in(folder, entry.get("engine"))
    rule = None if "image_tokens" in entry else image_rule_in(folder)
    found = {"tasks": tasks, "image_tokens": rule}
    return {**entry, **{name: value for name, value in found.items() if value is not None}}


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
    """Checks across entries: every pool exists, and no name means two things."""
    served: dict[str, str] = {}
    lanes: dict[str, str] = {}
    for name, entry in catalog.models.items():
        at = ("models", name)
        if entry.name != name:
            yield _Problem((*at, "name"), "leave it out: the key is the name")
        yield from _pool_problems(catalog, entry, at)
        for argument, reason in _closed_arguments(entry):
            yield _Problem((*at, "engine", argument), reason)
        for field, reason in starting_problems(entry.starting, entry.engine, entry.env):
            yield _Problem((*at, "start", field), reason)
        for alias in entry.served_names:
            if alias in served:
                here = at if alias == name else (*at, "lora", alias)
                yield _Problem(here, f"the name `{alias}` is taken by model `{served[alias]}`")
            if adapter_named(alias) is not None:
                here = at if alias == name else (*at, "lora", alias)
                yield _Problem(here, "names with `:file-` are those of tenants' adapters")
            served.setdefault(alias, name)
        if lanes.setdefault(slug(name), name) != name:
            yield _Problem(at, f"too like `{lanes[slug(name)]}`: both would be `{slug(name)}`")


def _closed_arguments(model: Model) -> Iterator[tuple[str, str]]:
    """Engine arguments that the catalog may not have, and why."""
    for argument, value in model.engine.items():
        if argument in RESERVED_ENGINE_ARGUMENTS:
            yield argument, f"may not be set here: {RESERVED_ENGINE_ARGUMENTS[argument]}"
        elif argument == _WORKERS_OF_RAY[0] and (argument, value) != _WORKERS_OF_RAY:
            yield argument, "follows from the pool, and may only be `ray`: a process for each card"
        elif argument.startswith("data_parallel_") and (argument, value) != _ONE_COPY:
            yield (
                argument,
                "data parallel engines are not supported: Ray would reserve the GPUs of one copy "
                "alone. Use `max_replicas`, which runs several engines",
            )


def _pool_problems(catalog: Catalog, entry: Model, at: Where) -> Iterator[_Problem]:
    for index, pool in enumerate(entry.pools):
        if pool not in catalog.pools:
            known = ", ".join(catalog.pools)
            yield _Problem((*at, "pools", index), f"no pool `{pool}`; there are: {known}")
            continue
        for argument, reason in share_problems(catalog.pools[pool], entry.engine):
            yield _Problem((*at, "engine", argument), f"on pool `{pool}`: {reason}")


def _dotted(at: Where) -> str:
    return ".".join(str(step) for step in at)
