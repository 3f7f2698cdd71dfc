from pathlib import Path

import pytest

from cli.client.sinks import PartFile, file_of, write
from shared.errors import InvalidInputError


def test_a_file_appears_once_it_is_whole(tmp_path: Path) -> None:
    with PartFile(tmp_path / "out.jsonl", "batch_1") as part:
        write([b"a\n", b"b\n"], part.file)
        assert not (tmp_path / "out.jsonl").exists()
        part.finish()

    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]
    assert (tmp_path / "out.jsonl").read_bytes() == b"a\nb\n"


def test_a_line_that_was_cut_is_dropped(tmp_path: Path) -> None:
    with PartFile(tmp_path / "out", "x") as part:
        write([b"a\n" * 600_000, b"b\n", b"cut"], part.file)

    with PartFile(tmp_path / "out", "x") as again:
        assert again.whole_lines() == 600_001
        assert again.size() == 1_200_002
        write([b"c\n"], again.file)
        again.finish()

    assert (tmp_path / "out").read_bytes() == b"a\n" * 600_000 + b"b\nc\n"


def test_a_part_of_something_else_is_not_continued(tmp_path: Path) -> None:
    with PartFile(tmp_path / "out", "batch_1") as part:
        write([b"a\n"], part.file)

    with PartFile(tmp_path / "out", "batch_2") as other:
        assert other.whole_lines() == 0


def test_a_part_that_is_begun_again_is_empty(tmp_path: Path) -> None:
    with PartFile(tmp_path / "out", "x") as part:
        write([b"a\n"], part.file)
        part.begin_again()
        write([b"b\n"], part.file)
        part.finish()

    assert (tmp_path / "out").read_bytes() == b"b\n"


def test_two_commands_do_not_write_the_same_file_at_once(tmp_path: Path) -> None:
    with PartFile(tmp_path / "out", "x") as part:
        write([b"a\n"], part.file)
        with pytest.raises(InvalidInputError, match=r"out: another command is writing it"):
            PartFile(tmp_path / "out", "x").__enter__()
        part.finish()

    with PartFile(tmp_path / "out", "x") as next_one:
        assert next_one.size() == 0


def test_in_a_folder_failed_lines_do_not_take_the_place_of_all_lines(tmp_path: Path) -> None:
    whole = file_of(tmp_path, "batch_1", only_failed=False)
    failed = file_of(tmp_path, "batch_1", only_failed=True)

    assert (whole.name, failed.name) == ("batch_1.jsonl", "batch_1.failed.jsonl")
    assert file_of(whole, "batch_2", only_failed=True) == whole
