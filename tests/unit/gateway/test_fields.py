import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.batch_rules import CreateBatch, fingerprint
from gateway.fields import (
    MetadataLimits,
    parsed,
    require_one_of,
    require_small,
)
from gateway.file_rules import ExpiresAfter
from shared.errors import InvalidInputError
from shared.pipeline.declaration import Declaration

#: No time limit: a busy machine is not the code's fault.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=10,
)


@unhurried
@given(
    params=st.fixed_dictionaries(
        {},
        optional={
            name: ANY_JSON
            for name in (*CreateBatch.model_fields, "unknown")
            if name != "idempotency_key"
        },
    )
)
def test_any_body_is_taken_or_refused_with_a_reason(params: dict[str, object]) -> None:
    try:
        parsed(json.dumps(params).encode(), CreateBatch)
    except InvalidInputError as error:
        refusal = error
    else:
        return
    assert str(refusal)
    assert refusal.param is None or isinstance(refusal.param, str)


@unhurried
@given(body=st.binary(max_size=50))
def test_any_bytes_are_taken_or_refused(body: bytes) -> None:
    with pytest.raises(InvalidInputError):
        parsed(body, ExpiresAfter)


def test_a_long_value_is_not_repeated_in_full() -> None:
    with pytest.raises(InvalidInputError) as refused:
        require_one_of("x" * 1_000_000, ("a", "b"), "endpoint")

    assert len(str(refused.value)) < 300


def test_the_same_request_has_the_same_fingerprint_however_it_was_written() -> None:
    bodies = [
        b'{"input_file_id":"f","endpoint":"e","completion_window":"24h","metadata":{"a":"1","b":"2"}}',
        b'{"metadata":{"b":"2","a":"1"},"priority":5,"completion_window":"24h","endpoint":"e",'
        b'"input_file_id":"f"}',
    ]

    assert len({fingerprint(parsed(params, CreateBatch), 1) for params in bodies}) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"input_file_id": "g"},
        {"endpoint": "f"},
        {"completion_window": "7d"},
        {"metadata": {}},
        {"priority": 6},
    ],
)
def test_another_request_has_another_fingerprint(change: dict[str, object]) -> None:
    params = CreateBatch(input_file_id="f", endpoint="e", completion_window="24h")

    assert fingerprint(params, 1) != fingerprint(params.model_copy(update=change), 1)
    assert fingerprint(params, 1) != fingerprint(params, 2)


@pytest.mark.parametrize(
    ("metadata", "param", "code"),
    [
        ({"a": "", "b": "", "c": ""}, "metadata", "object_above_max_properties"),
        ({"🙂🙂🙂🙂": ""}, "metadata.🙂🙂🙂🙂", "string_above_max_length"),
        ({"k": "éééééé"}, "metadata.k", "string_above_max_length"),
    ],
)
def test_metadata_is_held_against_its_limits(
    metadata: dict[str, str], param: str, code: str
) -> None:
    limits = MetadataLimits(pairs=2, key_characters=3, value_characters=5)

    require_small({"🙂🙂🙂": "ééééé", "b": ""}, limits)
    with pytest.raises(InvalidInputError) as refused:
        require_small(metadata, limits)

    assert (refused.value.param, refused.value.code) == (param, code)


def test_a_whole_number_is_an_integer_as_in_json_schema() -> None:
    body = b'{"input_file_id":"f","endpoint":"e","completion_window":"24h","priority":%s}'

    assert parsed(body % b"7.0", CreateBatch).priority == 7
    with pytest.raises(InvalidInputError, match="expected an integer, but got a decimal"):
        parsed(body % b"7.5", CreateBatch)


def test_a_rule_of_ours_is_told_in_our_words() -> None:
    body = b'{"input":{"columns":["text"]},"stages":[{"filter":"text"}]}'

    with pytest.raises(InvalidInputError) as refused:
        parsed(body, Declaration)

    assert str(refused.value) == ("Invalid value for 'input': name either 'objects' or 'file_id'.")
