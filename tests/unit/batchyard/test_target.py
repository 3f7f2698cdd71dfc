import pytest

from batchyard.target import target_of
from shared.errors import InvalidInputError


def test_a_key_of_a_file_has_no_line_feed() -> None:
    assert target_of("http://here/v1", "sk-here\n").key == "sk-here"


def test_what_no_header_holds_is_refused_without_being_shown() -> None:
    with pytest.raises(InvalidInputError, match="api_key is no key") as refused:
        target_of("http://here/v1", "sk-secret\nX: y")

    assert "secret" not in str(refused.value)
