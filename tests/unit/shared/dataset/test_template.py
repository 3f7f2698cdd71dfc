import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.dataset.template import (
    MalformedTemplateError,
    RowError,
    RowFilter,
    RowTemplate,
    syntax_problem,
)

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9) | st.text("ab%}é\n"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=25)
@given(st.text())
def test_no_value_changes_the_form_of_the_body(text: str) -> None:
    body = rendered({"a": ["say {{ x }}!", {"b": 1}]}, x=text)

    assert body == {"a": [f"say {text}!", {"b": 1}]}


@settings(max_examples=25)
@given(_JSON)
def test_a_string_that_is_one_expression_takes_the_value_with_its_type(value: Any) -> None:
    assert rendered({"a": " {{ x }} "}, x=value) == {"a": value}


@settings(max_examples=25)
@given(st.dictionaries(st.text("ab%}"), _JSON, max_size=3))
def test_what_has_no_marks_stays_as_it_is(template: dict[str, Any]) -> None:
    assert rendered(template) == template


def test_a_missing_value_is_an_empty_text_inside_of_a_text() -> None:
    assert rendered({"a": "<{{ x }}>"}, x=None) == {"a": "<>"}


def test_bytes_and_times_have_one_form_in_json_and_bytes_in_texts() -> None:
    values = {"b": b"\xff", "at": datetime(2026, 1, 2, tzinfo=UTC), "n": Decimal("1.10")}
    made = {"b": "/w==", "at": "2026-01-02T00:00:00Z", "n": "1.10"}

    assert rendered({"a": "<{{ x.b }}>"}, x=values) == {"a": "</w==>"}
    assert rendered({"a": "{{ x }}"}, x=values) == {"a": made}
    assert json.loads(rendered({"a": "{{ x|tojson }}"}, x=values)["a"]) == made


def test_the_columns_that_a_template_names_are_known() -> None:
    template = RowTemplate(
        {"a": "{% for w in words %}{{ w }}{{ n }}{% endfor %}", "b": "{{ c.d }}"}
    )

    assert template.columns == {"words", "n", "c"}
    assert RowFilter("lang == 'en' and range > row.n").columns == {"lang", "range", "row"}


@pytest.mark.parametrize(
    "text",
    [
        "{{ x.__class__ }}",
        "{{ x.__class__.__mro__[1].__subclasses__() }}",
        "{{ x.format.__globals__ }}",
        "{{ '{0.__class__}'.format(x) }}",
        "{{ words.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% include 'a' %}",
    ],
)
def test_a_template_reaches_nothing_but_its_row(text: str) -> None:
    with pytest.raises((RowError, MalformedTemplateError)):
        rendered({"a": f"- {text}"}, x="secret", words=["secret"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{{ words[7] }}", "not defined"),
        ("{{ x|int + 'a' }}", "TypeError"),
        ("{{ x|tojson|unknown }}", "unknown"),
        ("{{ [].b.c }}", "not defined"),
        ("{{ x }} {{ other }}", "the row has no 'other'"),
        ("{{ other }}", "the row has no 'other'"),
    ],
)
def test_an_error_names_its_place_and_no_value(text: str, reason: str) -> None:
    with pytest.raises((RowError, MalformedTemplateError)) as raised:
        rendered({"a": [{}, {"b": text}]}, x="secret", words=["secret"])

    error = raised.value
    assert isinstance(error, RowError | MalformedTemplateError)
    param, said = (
        error.problem if isinstance(error, MalformedTemplateError) else (error.param, error.reason)
    )
    assert param == "template.a[1].b"
    assert reason in said
    assert "secret" not in said


@pytest.mark.parametrize(
    ("template", "filter_", "param"),
    [
        ({"a": "{{ x"}, None, "template.a"),
        ({"a": [{"b": "{% if %}"}]}, None, "template.a[0].b"),
        ({"a": 1}, "x ==", "filter"),
        ({"a": "{{ " + "(" * 3000 + "x" + ")" * 3000 + " }}"}, None, "template.a"),
        ({"a": "{{ x + " + "1" * 5000 + " }}"}, None, "template.a"),
    ],
)
def test_what_cannot_be_read_is_told_without_running_it(
    template: dict[str, Any], filter_: str | None, param: str
) -> None:
    problem = syntax_problem(template, filter_)

    assert problem is not None
    assert problem.param == param
    # Who shows it ends the sentence.
    assert not problem.reason.endswith(".")


def test_reading_a_template_runs_none_of_it() -> None:
    assert syntax_problem({"a": "{{ 7 ** (10 ** 9) }}"}, "'x' * 10 ** 12") is None


def rendered(template: dict[str, Any], **row: Any) -> Any:
    return json.loads(RowTemplate(template).render(row))
