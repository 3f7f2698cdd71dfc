from typing import Any

import pytest

from shared.table.answer_shape import MalformedSchemaError, MisfitError, fitted, shape_of

WORD = {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]}
TREE = {
    "$ref": "#/$defs/tree",
    "$defs": {"tree": {"properties": {"next": {"$ref": "#/$defs/tree"}}}},
}


@pytest.mark.parametrize(
    ("schema", "value", "held"),
    [
        ({"type": "string"}, "a", "a"),
        ({"type": "number"}, 1, 1.0),
        ({"type": "integer"}, 2.0, 2),
        ({"type": ["boolean", "null"]}, None, None),
        ({"enum": ["a", "b"]}, "a", "a"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, None, None),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, 5, "5"),
        ({"type": "object"}, {"a": [1]}, '{"a":[1]}'),
        ({"type": "array", "items": WORD}, [{"at": 1, "x": 2}], [{"at": 1}]),
        ({}, [1], "[1]"),
    ],
)
def test_a_value_is_held_as_its_schema_says(schema: Any, value: Any, held: Any) -> None:
    assert fitted(value, shape_of(schema)) == held


@pytest.mark.parametrize(
    ("schema", "value", "place"),
    [
        ({"type": "string"}, 1, "the answer is not"),
        ({"type": "integer"}, True, "the answer is not"),
        ({"type": "integer"}, 2**63, "the answer is not"),
        ({"type": "number"}, 10**400, "the answer is too large"),
        ({"type": "string"}, None, "the answer is null"),
        ({"type": "string"}, "\ud83d", "the answer has half of a surrogate pair"),
        ({"enum": ["a", "b"]}, "\udc00", "the answer has half of a surrogate pair"),
        (WORD, {}, r"the answer\.at is missing"),
        ({"type": "array", "items": WORD}, [{"at": 1}, {"at": "x"}], r"the answer\[1\]\.at is not"),
    ],
)
def test_a_value_that_does_not_fit_is_named_by_its_place(
    schema: Any, value: Any, place: str
) -> None:
    with pytest.raises(MisfitError, match=place):
        fitted(value, shape_of(schema))


def test_a_schema_that_refers_to_itself_ends() -> None:
    shape = shape_of(TREE)

    assert fitted({"next": {"next": {}}}, shape) is not None


def test_a_schema_that_refers_to_itself_at_many_places_is_refused() -> None:
    fields = {f"field{number}": {"$ref": "#"} for number in range(10)}

    with pytest.raises(MalformedSchemaError, match="more than 10000 parts"):
        shape_of({"type": "object", "properties": fields})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "what"},
        {"$ref": "https://example.com/"},
        {"$ref": "#/nowhere"},
        {"anyOf": []},
        {"type": "object", "properties": 1},
        {"type": "object", "properties": {"a": {}}, "required": [1]},
        {"type": "array", "items": 3},
    ],
)
def test_a_malformed_schema_is_refused(schema: Any) -> None:
    with pytest.raises(MalformedSchemaError):
        shape_of(schema)
