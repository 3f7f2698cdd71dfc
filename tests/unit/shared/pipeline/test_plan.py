"""Declarations: what is refused, with its place, and what lies between calls."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.dataset.template import RowTemplate
from shared.errors import InvalidInputError
from shared.pipeline.declaration import Declaration
from shared.pipeline.plan import Deduplication, check, planned

_CHAT = "/v1/chat/completions"
_MODELS = {"tiny": {_CHAT}, "minilm": {"/v1/embeddings"}}
_PRODUCTS = {"file_id": "file-2", "columns": ["price"], "key": "id", "on": "title"}
_NEAREST = {
    "file_id": "file-3",
    "columns": ["price"],
    "vector": "v",
    "query": "title",
    "k": 3,
    "into": "near",
}
_SCHEMA = {"type": "object", "properties": {"label": {"type": "string"}}, "required": ["label"]}


def _ask(text: str, **changes: Any) -> dict[str, Any]:
    template = {"model": "tiny", "messages": [{"role": "user", "content": text}]}
    return {"call": {"endpoint": _CHAT, "template": template, **changes}}


def _declared(*stages: dict[str, Any], **changes: Any) -> Declaration:
    source = {"file_id": "file-1", "columns": ["title", "text"]}
    return Declaration.model_validate({"input": source, "stages": list(stages), **changes})


def _problem(*stages: dict[str, Any], **changes: Any) -> tuple[str | None, str | None]:
    with pytest.raises(InvalidInputError) as caught:
        check(_declared(*stages, **changes), _MODELS)
    assert f"'{caught.value.param}'" in str(caught.value)
    return caught.value.param, caught.value.code


def test_a_stage_has_the_columns_of_those_before_it() -> None:
    check(
        _declared(
            {"split": {"column": "text", "tokens": 10, "into": "chunk"}},
            {"filter": "chunk|length > 2"},
            {"deduplicate": ["chunk"]},
            _ask("{{ title }}: {{ chunk }}", answer="summary", schema=_SCHEMA),
            {"filter": "label == 'good'"},
            {"join": _PRODUCTS},
            {"filter": "price|float > 3"},
            _ask("{{ summary }} of {{ text }} {% for word in chunk %}{{ word }}{% endfor %}"),
        ),
        _MODELS,
    )


def test_an_unknown_column_is_named_with_its_stage() -> None:
    stages = (_ask("{{ text }}"), _ask("{{ answr }}", answer="second"))

    assert _problem(*stages) == ("stages[1].call.template.messages[0].content", "unknown_column")


@pytest.mark.parametrize(
    ("stage", "param"),
    [
        ({"filter": "chunk == 'x'"}, "stages[0].filter"),
        ({"deduplicate": ["text", "no"]}, "stages[0].deduplicate"),
        ({"split": {"column": "no", "tokens": 5}}, "stages[0].split.column"),
        (_ask("{{ text }}", carry=["no"]), "stages[0].call.carry"),
        ({"join": {**_PRODUCTS, "on": "no"}}, "stages[0].join.on"),
        ({"top_k": {**_NEAREST, "query": "no"}}, "stages[0].top_k.query"),
    ],
)
def test_each_kind_of_stage_names_only_columns_that_there_are(
    stage: dict[str, Any], param: str
) -> None:
    assert _problem(stage) == (param, "unknown_column")


def test_columns_that_are_not_carried_are_gone() -> None:
    stages = (_ask("{{ text }}", carry=["title"]), _ask("{{ text }}", answer="second"))

    assert _problem(*stages)[1] == "unknown_column"


def test_an_unknown_model_is_named_with_its_stage() -> None:
    other = _ask("{{ text }}", answer="second")
    other["call"]["template"]["model"] = "nobody"

    found = _problem(_ask("{{ text }}"), other)

    assert found == (
        "stages[1].call.template.model",
        "model_not_found",
    )


def test_a_model_is_for_its_endpoint() -> None:
    stage = _ask("{{ text }}", endpoint="/v1/embeddings")

    assert _problem(stage) == ("stages[0].call.template.model", "model_not_found")


@pytest.mark.parametrize(
    ("stage", "param"),
    [
        (_ask("{{ text }"), "stages[0].call.template.messages[0].content"),
        (_ask("{{ text }}", endpoint="/v1/nothing"), "stages[0].call.endpoint"),
        (_ask("{{ text }}", answer="title"), "stages[0].call.answer"),
        (_ask("{{ text }}", answer="label", schema=_SCHEMA), "stages[0].call.answer"),
        ({"split": {"column": "text", "tokens": 5, "into": "title"}}, "stages[0].split.into"),
        ({"filter": "text =="}, "stages[0].filter"),
        ({"filter": "text"}, "stages"),
        ({"join": {**_PRODUCTS, "columns": ["text"]}}, "stages[0].join.columns"),
        ({"top_k": {**_NEAREST, "columns": ["score"]}}, "stages[0].top_k.columns"),
        ({"top_k": {**_NEAREST, "into": "text"}}, "stages[0].top_k.into"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(stage: dict[str, Any], param: str) -> None:
    assert _problem(stage) == (param, "invalid_value")


@pytest.mark.parametrize(
    "stage", [{}, {"filter": "text", "deduplicate": ["text"]}, {"filter": None}, {"top_k": {}}]
)
def test_a_stage_is_of_one_kind(stage: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="stages"):
        _declared(stage)


def test_looking_at_a_template_runs_nothing_of_it() -> None:
    check(_declared(_ask("{{ 2 ** (2 ** 40) }} {{ text }}")), _MODELS)


def test_steps_between_two_deduplications_are_taken_together() -> None:
    plan = planned(
        _declared(
            {"filter": "text"},
            {"split": {"column": "text", "tokens": 5}},
            {"deduplicate": ["text"]},
            {"filter": "title"},
            _ask("{{ text }}"),
            {"filter": "answer"},
        )
    )

    first, last = plan.edges
    steps, once, more = first.parts
    assert isinstance(steps, list)
    assert [step.stage for step in steps] == [0, 1]
    assert once == Deduplication(2, ["text"])
    assert isinstance(more, list)
    assert [step.stage for step in more] == [3]
    assert first.call is not None
    assert (first.call.stage, first.call.model, last.call) == (4, "tiny", None)


@settings(max_examples=30)
@given(column=st.text(min_size=1, max_size=20))
def test_a_column_of_any_name_can_be_read(column: str) -> None:
    source = {"file_id": "file-1", "columns": {"it": column}}
    declaration = Declaration.model_validate({"input": source, "stages": [_ask("{{ it }}")]})

    [value] = declaration.input.dataset().template.values()

    rendered = RowTemplate({"it": value}).render({"row": {column: 7}, column: 7})
    assert rendered == b'{"it":7}'


def test_the_pipeline_of_the_docs_is_right() -> None:
    page = (Path(__file__).parents[4] / "docs/pipelines.md").read_text()
    example, nearest = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)

    declaration = Declaration.model_validate(yaml.safe_load(example))

    check(declaration, _MODELS)
    assert [stage.kind for stage in declaration.stages][:3] == ["split", "filter", "deduplicate"]
    source = {"file_id": "file-1", "columns": ["question"]}
    check(Declaration.model_validate({"input": source, "stages": yaml.safe_load(nearest)}), _MODELS)
