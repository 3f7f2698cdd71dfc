"""Checks a catalog's engine arguments against vLLM's own, before an engine starts with them.

It knows their names, types and simple limits, and what each engine takes of its pool. What depends
on the model's weights shows only when the model loads.
"""

import dataclasses
import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from shared.catalog import Catalog, Model
from shared.catalog_file import CatalogError, Marks, catalog_lines, load_catalog, tasks_in
from shared.openai.endpoints import ENDPOINTS, Task, endpoints_of
from worker.engine_endpoints import not_answered
from worker.engine_environment import forks_core
from worker.engine_need import EngineNeed, needs
from worker.model_folder import model_folder

#: Each of them is enough.
_SOUND_LIBRARIES = ("soundfile", "av")


def check_catalog(path: Path) -> int:
    """Print what each engine takes, and a line for each problem, or `ok`.

    The exit code is 2 if there is a problem.
    """
    try:
        catalog = load_catalog(path)
    except CatalogError as error:
        print(error)
        return 2
    # So that only our own lines are printed.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    marks = catalog_lines(path)
    known = _known_arguments()
    problems = [*_pool_problems(path, marks, catalog)]
    misfits = {name: [*_problems(model, known)] for name, model in catalog.models.items()}
    problems += [
        f"{path}:{marks.line(('models', name, 'engine', argument))}: "
        f"models.{name}.engine.{argument}: {reason}"
        for name, found in misfits.items()
        for argument, reason in found
    ]
    problems += [
        f"{path}:{marks.line(('models', name, 'start', field))}: "
        f"models.{name}.start.{field}: {reason}"
        for name, model in catalog.models.items()
        for field, reason in _start_problems(catalog, model, known)
    ]
    problems += _endpoint_problems(path, marks, catalog)
    problems += _hearing_problems(path, marks, catalog)
    # What an engine takes follows from its arguments, if they are numbers where they have to be.
    needed = [need for need in needs(catalog) if not misfits[need.model.name]]
    problems += _room_problems(path, marks, needed)
    told = [*map(str, needed), *_guesses(marks, catalog)]
    print("\n".join([*told, *(problems or ["ok"])]))
    return 2 if problems else 0


def _pool_problems(path: Path, marks: Marks, catalog: Catalog) -> Iterator[str]:
    """What Ray rejects about a pool, whatever model runs on it."""
    from worker.engine_config import llm_config

    for name, pool in catalog.pools.items():
        try:
            llm_config(Model(name="any", pools=(name,)), pool)
        except ValidationError as error:
            messages = [problem["msg"] for problem in error.errors(include_url=False)]
            reason = "; ".join(messages).replace("Value error, ", "")
            yield f"{path}:{marks.line(('pools', name))}: pools.{name}: {reason}"


def _endpoint_problems(path: Path, marks: Marks, catalog: Catalog) -> Iterator[str]:
    """What a model does not answer, as far as its files are on this machine."""
    for name, model in catalog.models.items():
        if (tasks := _tasks(model)) is None:
            continue
        answered = endpoints_of(tasks)
        if missing := [one for one in model.endpoints if one not in answered]:
            field = "tasks" if marks.has(("models", name, "tasks")) else "endpoints"
            at = ("models", name, field)
            where = f"{path}:{marks.line(at)}: models.{name}.{field}"
            yield f"{where}: {not_answered(missing, answered)}: {_written(tasks)}"


def _hearing_problems(path: Path, marks: Marks, catalog: Catalog) -> Iterator[str]:
    """Models that hear, where vLLM has nothing to read sounds with."""
    if any(find_spec(library) for library in _SOUND_LIBRARIES):
        return
    for name, model in catalog.models.items():
        if any(ENDPOINTS[one].prompt == "sound" for one in model.endpoints):
            yield (
                f"{path}:{marks.line(('models', name))}: models.{name}: it hears, and vLLM reads "
                f"sounds with {' or '.join(_SOUND_LIBRARIES)}, which are not installed here. "
                "Install one, or write the `endpoints` that it is to answer without them"
            )


def _guesses(marks: Marks, catalog: Catalog) -> Iterator[str]:
    """Models that do something else or more than they are taken for, or of which that is unknown.

    Only folders tell all processes what a model does.
    """
    unknown: dict[str, list[str]] = {}
    for name, model in catalog.models.items():
        if any(marks.has(("models", name, field)) for field in ("tasks", "endpoints")):
            continue
        if (tasks := _tasks(model)) is None:
            unknown.setdefault(" and ".join(model.tasks), []).append(f"models.{name}")
        elif {*endpoints_of(tasks)} > {*model.endpoints}:
            yield (
                f"models.{name}: it does more than {' and '.join(model.tasks)}, for which it is "
                f"taken, because it is no folder. Write {_written(tasks)} for all of it"
            )
    for taken_for, names in unknown.items():
        yield (
            f"{', '.join(names)}: taken for {taken_for}, because the files that would tell are "
            "neither on this machine nor to be had from the hub. Write `tasks` for a model that "
            "does something else, such as `[rerank]`: its rows fail only once its engine starts"
        )


def _room_problems(path: Path, marks: Marks, needed: Sequence[EngineNeed]) -> Iterator[str]:
    """Models that no machine of a pool of theirs can hold, as far as the pool says what it has."""
    for need in needed:
        if reason := need.problem:
            at = ("models", need.model.name, "pools")
            where = f"models.{need.model.name}: on pool `{need.pool_name}`"
            yield f"{path}:{marks.line(at)}: {where}: {reason}"


def _tasks(model: Model) -> tuple[Task, ...] | None:
    """What the model does by its own files; None if they cannot be had."""
    folder = model_folder(model)
    return None if folder is None else tasks_in(folder, model.engine)


def _written(tasks: Sequence[Task]) -> str:
    """The tasks as the catalog has them."""
    return f"`tasks: [{', '.join(tasks)}]`"


def _known_arguments() -> dict[str, list[Any]]:
    """For each argument, the types its value must fit: vLLM's, with the limits of its config."""
    from vllm.config import (
        CacheConfig,
        LoRAConfig,
        ModelConfig,
        ParallelConfig,
        SchedulerConfig,
    )
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import FrontendArgs

    known: dict[str, list[Any]] = {
        field.name: [field.type]
        for arguments in (AsyncEngineArgs, FrontendArgs)
        for field in dataclasses.fields(arguments)
    }
    for config in (ModelConfig, CacheConfig, LoRAConfig, ParallelConfig, SchedulerConfig):
        for field in dataclasses.fields(config):
            if field.name in known and isinstance(field.default, FieldInfo):
                known[field.name].append(Annotated[field.type, field.default])
    return known


def _start_problems(
    catalog: Catalog, model: Model, known: dict[str, list[Any]]
) -> Iterator[tuple[str, str]]:
    yield from _misfits(model.starting.arguments, known)
    if model.start is None or "core" not in model.start.model_fields_set:
        return
    for name in model.pools:
        if model.start.core == "forked" and not forks_core(model, catalog.pools[name]):
            yield (
                "core",
                f"on pool `{name}` the model runs in workers beside its core, which cannot be "
                "forked; leave it out",
            )


def _problems(model: Model, known: dict[str, list[Any]]) -> Iterator[tuple[str, str]]:
    yield from _misfits(model.engine, known)


def _misfits(
    arguments: Mapping[str, Any], known: dict[str, list[Any]]
) -> Iterator[tuple[str, str]]:
    for argument, value in arguments.items():
        if argument not in known:
            near = difflib.get_close_matches(argument, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            yield argument, f"vLLM has no such argument{hint}"
        elif reason := next(filter(None, (_misfit(value, kind) for kind in known[argument])), None):
            yield argument, f"{reason} (value: {value!r})"


def _misfit(value: Any, kind: Any) -> str | None:
    # vLLM does not convert values, except mappings to its own configuration classes.
    strict = not isinstance(value, dict | list)
    try:
        TypeAdapter(kind).validate_python(value, strict=strict)
    except ValidationError as error:
        messages = dict.fromkeys(problem["msg"] for problem in error.errors(include_url=False))
        return " or ".join(messages)
    except PydanticUserError:
        return None  # pydantic cannot read this annotation; vLLM will judge the value
    return None
