import pytest

from cli.client.run_key import run_key

_OPTIONS = {"endpoint": "/v1/embeddings", "priority": 5}
_KEY = run_key("http://gateway/v1", "abc", _OPTIONS)


def test_the_same_file_and_options_have_the_same_key() -> None:
    assert run_key("http://gateway/v1/", "abc", dict(reversed(_OPTIONS.items()))) == _KEY


@pytest.mark.parametrize(
    ("url", "digest", "options"),
    [
        ("http://other/v1", "abc", _OPTIONS),
        ("http://gateway/v1", "abd", _OPTIONS),
        ("http://gateway/v1", "abc", {**_OPTIONS, "priority": 6}),
    ],
)
def test_anything_else_has_another_key(url: str, digest: str, options: dict[str, object]) -> None:
    assert run_key(url, digest, options) != _KEY


def test_a_key_is_short_enough_for_a_gateway() -> None:
    assert len(_KEY) < 255
