from pathlib import Path

from cli.client.sinks import PartFile, file_of, write


def test_a_file_appears_once_it_is_whole(tmp_path: Path) -> None:
    part = PartFile(tmp_path / "out.jsonl", "batch_1")

    with part.open() as file:
        write([b"a\n", b"b\n"], file)
    assert not (tmp_path / "out.jsonl").exists()
    part.finish()

    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]
    assert (tmp_path / "out.jsonl").read_bytes() == b"a\nb\n"


def test_a_line_that_was_cut_is_dropped(tmp_path: Path) -> None:
    with PartFile(tmp_path / "out", "x").open() as file:
        write([b"a\n" * 600_000, b"b\n", b"cut"], file)

    again = PartFile(tmp_path / "out", "x")

    assert again.whole_lines() == 600_001
    assert again.size() == 1_200_002


def test_a_part_of_something_else_is_not_continued(tmp_path: Path) -> None:
    with PartFile(tmp_path / "out", "batch_1").open() as file:
        write([b"a\n"], file)

    assert PartFile(tmp_path / "out", "batch_2").whole_lines() == 0


def test_in_a_folder_failed_lines_do_not_take_the_place_of_all_lines(tmp_path: Path) -> None:
    whole = file_of(tmp_path, "batch_1", only_failed=False)
    failed = file_of(tmp_path, "batch_1", only_failed=True)

    assert (whole.name, failed.name) == ("batch_1.jsonl", "batch_1.failed.jsonl")
    assert file_of(whole, "batch_2", only_failed=True) == whole
