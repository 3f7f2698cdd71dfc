import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cli.client.contexts import (
    Contexts,
    Target,
    changed_contexts,
    checked_url,
    choose,
    config_file,
    read_contexts,
)
from shared.errors import InvalidInputError, NotFoundError

_LAB = Target("lab", "http://lab/v1", "sk-lab")
_PROD = Target("prod", "https://prod/v1", "sk-prod")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """With a file of two contexts."""
    file = tmp_path / "deep" / "contexts.json"
    with changed_contexts(file) as contexts:
        contexts.targets, contexts.current = {"lab": _LAB, "prod": _PROD}, "prod"
    return {"BATCHYARD_CONFIG": str(file)}


def test_only_the_owner_can_read_the_file(environment: dict[str, str]) -> None:
    file = config_file(environment)

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert {path.name for path in file.parent.iterdir()} == {file.name, f".{file.name}.lock"}


def test_contexts_that_are_added_at_once_are_all_kept(environment: dict[str, str]) -> None:
    file = config_file(environment)

    def add(number: int) -> None:
        with changed_contexts(file) as contexts:
            contexts.targets[f"n{number}"] = Target(f"n{number}", "http://n/v1", "sk-n")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(40)))

    assert len(read_contexts(file).targets) == 42


@pytest.mark.parametrize("place", ["/dev/null/contexts.json", "/proc/contexts.json"])
def test_a_place_where_nothing_can_be_written_is_named(place: str) -> None:
    refused = pytest.raises(InvalidInputError, match=f"{place} cannot be written: ")

    with refused, changed_contexts(Path(place)):
        pass


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("sk-lab", "sk lab", "the key of lab"),
        ("sk-prod", "sk\\nprod", "the key of prod"),
        ("http://lab/v1", "lab/v1", "the URL of lab"),
    ],
)
def test_what_was_written_by_hand_is_named_if_no_call_can_be_made_with_it(
    environment: dict[str, str], old: str, new: str, said: str
) -> None:
    file = config_file(environment)
    file.write_text(file.read_text().replace(old, new))

    with pytest.raises(InvalidInputError, match=said) as refused:
        read_contexts(file)

    assert "sk" not in str(refused.value)


def test_a_file_that_others_may_read_is_refused(environment: dict[str, str]) -> None:
    file = config_file(environment)
    file.chmod(0o640)

    with pytest.raises(InvalidInputError, match="chmod 600"):
        read_contexts(file)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"current": null, "contexts": {"a": {}}}',
        b'{"current": ["a"], "contexts": {}}',
        b"\xff\xfe",
    ],
)
def test_a_damaged_file_is_refused(environment: dict[str, str], text: bytes) -> None:
    file = config_file(environment)
    file.write_bytes(text)

    with pytest.raises(InvalidInputError, match="Move it away"):
        read_contexts(file)


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="Is a directory"):
        read_contexts(tmp_path)


def test_what_is_named_more_closely_comes_first(environment: dict[str, str]) -> None:
    here = {"OPENAI_BASE_URL": "http://here/v1/", "OPENAI_API_KEY": "sk-here"}

    assert choose(None, environment) == _PROD
    assert choose(None, environment | here).url == "http://here/v1"
    assert choose(None, environment | here | {"BATCHYARD_CONTEXT": "lab"}) == _LAB
    assert choose("prod", environment | here | {"BATCHYARD_CONTEXT": "lab"}) == _PROD


def test_a_key_without_an_address_is_not_sent_anywhere(tmp_path: Path) -> None:
    nothing = {"BATCHYARD_CONFIG": str(tmp_path / "none"), "OPENAI_API_KEY": "sk-openai"}

    with pytest.raises(InvalidInputError, match="batchyard context add"):
        choose(None, nothing)
    with pytest.raises(InvalidInputError, match="OPENAI_API_KEY is not"):
        choose(None, {"OPENAI_BASE_URL": "http://here/v1"})
    with pytest.raises(NotFoundError, match="'lab'"):
        choose("lab", nothing)


def test_a_key_is_not_in_a_targets_text() -> None:
    assert "sk-lab" not in repr(Contexts({"lab": _LAB}))


def test_a_key_of_a_file_has_no_line_feed() -> None:
    here = {"OPENAI_BASE_URL": "http://here/v1", "OPENAI_API_KEY": "sk-here\r\n"}

    assert choose(None, here).key == "sk-here"


@pytest.mark.parametrize("key", ["sk-secret\nX: y", "sk-secret x", "sk-secr\u00e9t", "\n"])
def test_what_no_header_holds_is_refused_without_being_shown(key: str) -> None:
    here = {"OPENAI_BASE_URL": "http://here/v1", "OPENAI_API_KEY": key}

    with pytest.raises(InvalidInputError, match="OPENAI_API_KEY is no key") as refused:
        choose(None, here)

    assert "secr" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "gateway/v1",
        "ftp://x",
        "https://me:secret@host/v1",
        "",
        "http://",
        "http://[::1/v1",
        "http://host:port/v1",
        "http://host/v1\r",
        "http://host /v1",
        "http://host/v1?key=x",
    ],
)
def test_what_is_no_base_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(InvalidInputError, match="is not a base URL") as refused:
        checked_url(url, "--url")

    assert "secret" not in str(refused.value)
