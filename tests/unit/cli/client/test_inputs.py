from pathlib import Path

import pytest

from cli.client.inputs import digest_of, endpoint_of, input_files
from shared.errors import InvalidInputError


def test_folders_and_patterns_stand_for_their_files(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.JSONL", "c.txt"):
        (tmp_path / name).touch()

    assert [file.name for file in input_files([tmp_path])] == ["a.JSONL", "b.jsonl"]
    assert input_files([tmp_path / "*.jsonl"]) == [tmp_path / "b.jsonl"]
    # Named twice, run once; and a file that is named may have any name.
    both = [tmp_path / "c.txt", tmp_path / "b.jsonl", tmp_path]
    assert [file.name for file in input_files(both)] == ["c.txt", "b.jsonl", "a.JSONL"]


@pytest.mark.parametrize("name", ["nowhere.jsonl", "*.jsonl", "."])
def test_nothing_is_an_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="there is no"):
        input_files([tmp_path / name])


@pytest.mark.parametrize("begin", [b"", b"\n \n", b"\xef\xbb\xbf"])
def test_the_endpoint_is_that_of_the_first_request(begin: bytes, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(begin + b'{"url": "/v1/embeddings"}\n{"url": "x"}')

    assert endpoint_of(tmp_path / "in.jsonl") == "/v1/embeddings"


@pytest.mark.parametrize("text", [b"", b"\n\n", b"{", b"[]", b'{"url": 1}', b"[" * 100_000])
def test_a_file_without_a_request_has_no_endpoint(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(text)

    with pytest.raises(InvalidInputError, match=r"batchyard check .*in\.jsonl"):
        endpoint_of(tmp_path / "in.jsonl")


def test_a_digest_is_of_the_bytes_alone(tmp_path: Path) -> None:
    for name, text in (("a", "x"), ("b", "x"), ("c", "y")):
        (tmp_path / name).write_text(text)

    assert digest_of(tmp_path / "a") == digest_of(tmp_path / "b") != digest_of(tmp_path / "c")
