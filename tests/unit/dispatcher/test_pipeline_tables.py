import pytest

from dispatcher.pipeline_tables import key_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("007", "007"),
        (7, "7"),
        (7.0, "7"),
        (-0.0, "0"),
        (7.5, "7.5"),
        (True, "true"),
        ([1, "a"], '[1,"a"]'),
        (2.0**70, "1180591620717411303424"),
    ],
)
def test_a_number_and_its_text_are_one_key(value: object, text: str) -> None:
    assert key_text(value) == text


def test_what_is_missing_is_no_key() -> None:
    assert key_text(None) is None
    assert key_text("None") == "None"
