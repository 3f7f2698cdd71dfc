"""A declaration, looked at: which columns each stage has, and what lies between calls. Pure.

Everything that can be wrong with a declaration is found here, before anything runs.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from shared.dataset.template import ROW, MalformedTemplateError, used_names
from shared.errors import InvalidInputError
from shared.openai.endpoints import ENDPOINTS
from shared.pipeline.answers import answers_schema, new_columns
from shared.pipeline.declaration import (
    MAX_COLUMNS,
    NAME,
    SCORE,
    Call,
    Declaration,
    Join,
    Stage,
    TopK,
)
from shared.pipeline.stepping import Render, Step
from shared.table.answer_shape import MalformedSchemaError

_MARK = re.compile(r"\{[{%#]")
_MAX_SHOWN = 100


class NumberedCall(NamedTuple):
    """A call, with the number of its stage from 0."""

    stage: int
    call: Call

    @property
    def model(self) -> str:
        model: str = self.call.template["model"]
        return model

    @property
    def render(self) -> Render:
        """The requests that it wants of its rows."""
        return Render(self.stage, self.call.endpoint, self.call.template)


class Deduplication(NamedTuple):
    """A stage that lets the first of equal rows through."""

    stage: int
    columns: list[str]


class Joining(NamedTuple):
    """A stage that adds columns of another table."""

    stage: int
    join: Join


class Ranking(NamedTuple):
    """A stage that adds the nearest rows of another table."""

    stage: int
    top_k: TopK


#: What rows take between two calls: steps of one process, or what has to know of other rows.
Part = list[Step] | Deduplication | Joining | Ranking


class Edge(NamedTuple):
    """What lies between two calls, before the first or behind the last one.

    `parts` are in order.
    """

    parts: list[Part]
    #: None for the last edge, which makes the pipeline's output.
    call: NumberedCall | None


class Plan(NamedTuple):
    """The edges of a pipeline in order: one more than it has calls."""

    edges: list[Edge]

    @property
    def calls(self) -> list[NumberedCall]:
        return [edge.call for edge in self.edges if edge.call is not None]


def planned(declaration: Declaration) -> Plan:
    """The plan of a declaration that was checked."""
    edges, parts = list[Edge](), list[Part]()
    for number, stage in enumerate(declaration.stages):
        if stage.call is not None:
            edges.append(Edge(parts, NumberedCall(number, stage.call)))
            parts = []
        elif stage.deduplicate is not None:
            parts.append(Deduplication(number, stage.deduplicate))
        elif stage.join is not None:
            parts.append(Joining(number, stage.join))
        elif stage.top_k is not None:
            parts.append(Ranking(number, stage.top_k))
        elif parts and isinstance(parts[-1], list):
            parts[-1].append(_step(number, stage))
        else:
            parts.append([_step(number, stage)])
    return Plan([*edges, Edge(parts, None)])


def check(
    declaration: Declaration, models: Mapping[str, Collection[str]], *, max_overlap: int = 10_000
) -> list[str]:
    """The columns that rows have at the end.

    Raises InvalidInputError, which names the stage and the field, if the declaration is wrong.
    `models` are those that the tenant may use, with the endpoints of each.
    """
    columns = list(declaration.input.named_columns)
    for name in columns:
        _require_name(name, "input.columns")
    for number, stage in enumerate(declaration.stages):
        place = f"stages[{number}]"
        columns = _after(stage, place, columns, models)
        if len(columns) > MAX_COLUMNS:
            raise _invalid(place, f"its rows would have more than {MAX_COLUMNS} columns")
        if stage.split is not None and stage.split.overlap > max_overlap:
            raise _invalid(f"{place}.split.overlap", f"the most is {max_overlap}")
    if not any(stage.call for stage in declaration.stages):
        raise _invalid("stages", "none of them is a 'call'")
    return columns


def _after(
    stage: Stage, place: str, columns: list[str], models: Mapping[str, Collection[str]]
) -> list[str]:
    """The columns that rows have behind the stage. Raises InvalidInputError."""
    if stage.call is not None:
        return _after_call(stage.call, f"{place}.call", columns, models)
    if stage.split is not None:
        _require_known([stage.split.column], columns, f"{place}.split.column")
        if (model := stage.split.model) is not None and model not in models:
            raise InvalidInputError(
                f"Invalid '{place}.split.model': the model '{_shown(model)}' does not exist.",
                param=f"{place}.split.model",
                code="model_not_found",
            )
        if stage.split.into is None or stage.split.into == stage.split.column:
            return columns
        _require_new([stage.split.into], columns, f"{place}.split.into")
        return [*columns, stage.split.into]
    if stage.join is not None:
        return _after_join(stage.join, f"{place}.join", columns)
    if stage.top_k is not None:
        return _after_top_k(stage.top_k, f"{place}.top_k", columns)
    if stage.filter is not None:
        _require_used({}, stage.filter, columns, place)
    if stage.deduplicate is not None:
        _require_known(stage.deduplicate, columns, f"{place}.deduplicate")
    return columns


def _after_join(join: Join, place: str, columns: list[str]) -> list[str]:
    _require_known([join.on], columns, f"{place}.on")
    made = list(join.named_columns)
    for name in made:
        _require_name(name, f"{place}.columns")
    _require_new(made, columns, f"{place}.columns")
    return [*columns, *made]


def _after_top_k(top_k: TopK, place: str, columns: list[str]) -> list[str]:
    _require_known([top_k.query], columns, f"{place}.query")
    found = list(top_k.named_columns)
    for name in found:
        _require_name(name, f"{place}.columns")
    _require_new([SCORE], found, f"{place}.columns")
    _require_new([top_k.into], columns, f"{place}.into")
    return [*columns, top_k.into]


def _after_call(
    call: Call, place: str, columns: list[str], models: Mapping[str, Collection[str]]
) -> list[str]:
    if call.endpoint not in ENDPOINTS:
        raise _invalid(f"{place}.endpoint", f"there is none of that name: {_shown(call.endpoint)}")
    model = call.template.get("model")
    if not isinstance(model, str) or _MARK.search(model):
        raise _invalid(f"{place}.template.model", "it must be the name of a model")
    if call.endpoint not in models.get(model, ()):
        raise InvalidInputError(
            f"Invalid '{place}.template.model': the model '{_shown(model)}' does not exist, or not "
            f"for the endpoint {call.endpoint}.",
            param=f"{place}.template.model",
            code="model_not_found",
        )
    _require_used(call.template, None, columns, place)
    carried = columns if call.carry is None else call.carry
    _require_known(carried, columns, f"{place}.carry")
    try:
        made = new_columns(call)
    except MalformedSchemaError as error:
        raise _invalid(f"{place}.schema", str(error)) from error
    for name in made:
        _require_name(name, f"{place}.schema")
    if call.retries and answers_schema(call) is None:
        raise _invalid(f"{place}.retries", "there is no 'schema' that an answer could fail to fit")
    if call.cache and not call.keep:
        text = "answers are given again from the stage's output file, which 'keep' must leave there"
        raise _invalid(f"{place}.cache", text)
    if len(set(made)) < len(made):
        raise _invalid(f"{place}.answer", f"the schema has a field '{made[0]}' as well")
    _require_new(made, carried, f"{place}.answer")
    return [*carried, *made]


def _require_used(
    template: Mapping[str, Any], filter_: str | None, columns: Collection[str], place: str
) -> None:
    """Raise InvalidInputError for a template or filter that names what no row has."""
    try:
        names = used_names(template, filter_)
    except MalformedTemplateError as error:
        where, why = error.problem
        raise _invalid(f"{place}.{where}", f"it cannot be read: {why}") from error
    for name, where in names.items():
        if name != ROW:
            _require_known([name], columns, f"{place}.{where}")


def _require_known(names: Sequence[str], columns: Collection[str], param: str) -> None:
    for name in names:
        if name not in columns:
            has = ", ".join(columns)
            raise InvalidInputError(
                f"Invalid '{param}': there is no column '{_shown(name)}' here. There are: {has}.",
                param=param,
                code="unknown_column",
            )


def _require_new(names: Sequence[str], columns: Collection[str], param: str) -> None:
    for name in names:
        if name in columns:
            raise _invalid(param, f"there is a column '{name}' already. Give it another name")


def _require_name(name: str, param: str) -> None:
    if not re.fullmatch(NAME, name) or name == ROW:
        text = f"'{_shown(name)}' is no name for a column: use letters, digits and underscores"
        raise _invalid(param, text)


def _step(number: int, stage: Stage) -> Step:
    if stage.split is None:
        return Step(number, filter=stage.filter or "")
    split = stage.split
    return Step(
        number,
        column=split.column,
        into=split.into or split.column,
        tokens=split.tokens,
        overlap=split.overlap,
    )


def _shown(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _invalid(param: str, text: str) -> InvalidInputError:
    return InvalidInputError(f"Invalid '{param}': {text}.", param=param, code="invalid_value")
