import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.file_rules import disposition, expires_after
from shared.errors import InvalidInputError

#: No time limit: a busy machine is not the code's fault.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize(
    ("filename", "header"),
    [
        ("a.jsonl", 'attachment; filename="a.jsonl"'),
        ("a b.jsonl", 'attachment; filename="a b.jsonl"'),
        ("ä.jsonl", "attachment; filename=\"_.jsonl\"; filename*=UTF-8''%C3%A4.jsonl"),
        ('a"b', "attachment; filename=\"a_b\"; filename*=UTF-8''a%22b"),
    ],
)
def test_a_disposition_names_the_file(filename: str, header: str) -> None:
    assert disposition(filename) == header


@unhurried
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_no_file_name_breaks_out_of_its_header(filename: str) -> None:
    assert re.fullmatch(
        r"attachment; filename=\"[ !#-\[\]-~]*\"(; filename\*=UTF-8''[A-Za-z0-9._~%-]+)?",
        disposition(filename),
    )


def test_a_form_that_says_nothing_about_expiry_has_none() -> None:
    assert expires_after({"purpose": "batch"}) is None


@pytest.mark.parametrize("seconds", ["x", "", "3.5", "1" * 5000, "٣٦٠٠"])
def test_seconds_that_are_no_number_are_refused(seconds: str) -> None:
    with pytest.raises(InvalidInputError, match=r"expires_after\.seconds") as refused:
        expires_after({"expires_after[anchor]": "created_at", "expires_after[seconds]": seconds})

    assert refused.value.code == "invalid_type"


@pytest.mark.parametrize("text", ["", "x", "[]", "5", "null"])
def test_a_json_part_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        expires_after({"expires_after": text})
