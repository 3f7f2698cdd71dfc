from pathlib import Path

import pytest

from cli.client.submission import BatchOptions
from cli.client.templates import read_template, read_yaml, template_of
from shared.errors import InvalidInputError


def test_a_template_file_is_all_of_the_input_but_its_file(tmp_path: Path) -> None:
    path = tmp_path / "ask.yaml"
    path.write_text(
        "endpoint: /v1/embeddings\ncustom_id: id\ntemplate: {input: '{{ text }}'}\n"
        "output: {format: csv}\n"
    )

    body = BatchOptions(template=read_template(path)).body(tmp_path / "t.parquet")

    assert body["endpoint"] == "/v1/embeddings"
    assert body["output"] == {"format": "csv"}
    assert body["input"] == {"custom_id": "id", "template": {"input": "{{ text }}"}}


def test_a_command_changes_fields_of_the_template(tmp_path: Path) -> None:
    path = tmp_path / "ask.yaml"
    path.write_text("template: {model: a, max_tokens: 5, input: '{{ text }}'}\nlimit: 3\n")
    fields = ["max_tokens=20", "user={{ id }}", 'stop=["\\n"]', "note=a=b", "name=NaN"]

    found = template_of(path, "other", fields)

    assert found is not None
    assert found.input == {
        "limit": 3,
        "template": {
            "model": "other",
            "max_tokens": 20,
            "input": "{{ text }}",
            "user": "{{ id }}",
            "stop": ["\n"],
            "note": "a=b",
            "name": "NaN",
        },
    }
    assert template_of(path) == read_template(path)


@pytest.mark.parametrize(
    ("model", "fields", "says"),
    [
        ("m", None, "--template"),
        (None, ["a=1"], "--template"),
    ],
)
def test_only_a_template_is_changed(model: str | None, fields: list[str] | None, says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        template_of(None, model, fields)


@pytest.mark.parametrize("pair", ["a", "=1"])
def test_a_field_has_a_name_and_a_value(tmp_path: Path, pair: str) -> None:
    path = tmp_path / "ask.yaml"
    path.write_text("template: {a: 1}")

    with pytest.raises(InvalidInputError, match="NAME=VALUE"):
        template_of(path, fields=[pair])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("template: {a: [}", "line 1: "),
        ("limit: 3", "there is no 'template'"),
        ("- 1", "there is no 'template'"),
        ("template: {a: 1}\nfile_id: file-x", "must not have 'file_id'"),
        ("template: {a: 1}\nendpoint: [1]", "'endpoint' must be a text"),
    ],
)
def test_a_wrong_template_file_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "ask.yaml"
    path.write_text(text)

    with pytest.raises(InvalidInputError, match=r"ask\.yaml") as raised:
        read_template(path)

    assert says in str(raised.value)


def test_a_missing_template_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"none\.yaml: No such file"):
        read_template(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("metadata: {day: 2026-11-27}", "metadata.day is YAML's date"),
        ("template: {stop: [a, 2026-11-27 10:00:00]}", "template.stop.1 is YAML's datetime"),
        ("template: {temperature: .nan}", "template.temperature is YAML's nan"),
        ("template: {2026-11-27: x}", "template is YAML's date"),
        ("a: !!binary aGVsbG8=", "a is YAML's bytes"),
        ("a: !!set {b, c}", "a is YAML's set"),
        ("day: 2026-13-45", "looks like a date"),
        ("a: &a [*a]", "nested too deeply"),
        ("a: " + "[" * 3000 + "]" * 3000, "nested too deeply"),
    ],
)
def test_what_json_has_not_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "ask.yaml"
    path.write_text(text)

    with pytest.raises(InvalidInputError, match=words) as raised:
        read_yaml(path)

    assert "ask.yaml" in str(raised.value)


def test_the_field_on_of_a_join_is_no_boolean(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text("stages:\n- join: {key: id, on: text, missing: drop}\n- filter: true\n")

    assert read_yaml(path) == {
        "stages": [{"join": {"key": "id", "on": "text", "missing": "drop"}}, {"filter": True}]
    }
