import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.__main__ import app
from cli.client.exit_codes import ExitCode
from cli.tune import write_best
from shared.catalog_file import catalog_text, load_catalog
from shared.errors import SetupError

CATALOG = """\
pools:
  cpu: {resources: {CPU: 1}}
models:
  plain: {pools: [cpu], engine: &shared {max_num_seqs: 4}}
  chat:
    pools: [cpu]
    engine: {max_num_seqs: 2}
  alike: {pools: [cpu], engine: *shared}
"""
FIRST = {"seats": 2, "batched_tokens": 8192, "fronts": 1, "replicas": 1}
BEST: dict[str, Any] = {
    **FIRST, "seats": 64, "first": FIRST, "rows_per_second": 85.25, "before": 71.0, "tried": 7,
}  # fmt: skip


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    path = tmp_path / "catalog.yaml"
    path.write_text(CATALOG)
    path.chmod(0o640)
    return path


def test_only_what_is_better_otherwise_is_written_with_the_figures(catalog: Path) -> None:
    write_best(catalog, "chat", BEST, known=CATALOG)

    text = catalog.read_text()
    assert (
        text.replace("max_num_seqs: 64", "max_num_seqs: 2").splitlines()[:4]
        == (CATALOG.splitlines()[:4])
    )
    assert load_catalog(catalog).models["chat"].engine == {"max_num_seqs": 64}
    assert ", 85.2 rows/s, 71.0 before (best of 7)\n  chat:\n" in text
    assert catalog.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in catalog.parent.iterdir()] == ["catalog.yaml"]


def test_lines_end_as_they_did(catalog: Path) -> None:
    # As an editor of another system writes them.
    catalog.write_bytes(CATALOG.replace("\n", "\r\n").encode())

    for seats in (64, 128):
        write_best(catalog, "chat", {**BEST, "seats": seats}, known=catalog_text(catalog))

    lines = catalog.read_bytes().splitlines(keepends=True)
    assert len(lines) == len(CATALOG.splitlines()) + 1
    assert all(line.endswith(b"\r\n") for line in lines)
    assert load_catalog(catalog).models["chat"].engine == {"max_num_seqs": 128}


@pytest.mark.parametrize("name", ["plain", "alike"])
def test_an_entry_that_others_share_stays_and_the_values_are_told(catalog: Path, name: str) -> None:
    with pytest.raises(SetupError, match=r"engine\.max_num_seqs: 64"):
        write_best(catalog, name, BEST, known=CATALOG)

    assert catalog.read_text() == CATALOG


def test_what_would_be_no_catalog_is_not_written(catalog: Path) -> None:
    with pytest.raises(SetupError, match="stays as it is"):
        write_best(catalog, "chat", {**BEST, "fronts": 1000}, known=CATALOG)

    assert catalog.read_text() == CATALOG


def test_a_link_stays_and_what_it_shows_is_written(catalog: Path, tmp_path: Path) -> None:
    folder = tmp_path / "linked"
    folder.mkdir()
    link = folder / "catalog.yaml"
    link.symlink_to("../catalog.yaml")

    write_best(link, "chat", BEST, known=CATALOG)

    assert link.is_symlink()
    assert "max_num_seqs: 64" in catalog.read_text()


def test_all_names_of_a_file_say_the_same(catalog: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.hardlink_to(catalog)

    write_best(catalog, "chat", {**BEST, "seats": 4}, known=CATALOG)

    assert other.samefile(catalog)
    assert load_catalog(other).models["chat"].engine == {"max_num_seqs": 4}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_the_owner_stays(catalog: Path) -> None:
    os.chown(catalog, 1234, 5678)

    write_best(catalog, "chat", BEST, known=CATALOG)

    found = catalog.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (1234, 5678, 0o640)


def test_what_was_edited_meanwhile_stays_and_the_values_are_told(catalog: Path) -> None:
    edited = CATALOG.replace("max_num_seqs: 2}", "max_num_seqs: 3}")
    catalog.write_text(edited)

    with pytest.raises(SetupError, match=r"edited meanwhile.*engine\.max_num_seqs: 64"):
        write_best(catalog, "chat", BEST, known=CATALOG)

    assert catalog.read_text() == edited
    assert [path.name for path in catalog.parent.iterdir()] == ["catalog.yaml"]


@pytest.fixture
def mounted(catalog: Path) -> Iterator[Path]:
    """The file alone is mounted, as containers do it."""
    done = subprocess.run(["mount", "--bind", catalog, catalog], check=False, capture_output=True)
    if done.returncode:
        pytest.skip("nothing can be mounted here")
    yield catalog
    subprocess.run(["umount", catalog], check=True)


def test_a_file_that_is_mounted_is_written_in_place(mounted: Path) -> None:
    for seats in (64, 4, 1024):
        known = mounted.read_text()

        write_best(mounted, "chat", {**BEST, "seats": seats}, known=known)

        assert load_catalog(mounted).models["chat"].engine == {"max_num_seqs": seats}
    assert [path.name for path in mounted.parent.iterdir()] == ["catalog.yaml"]


def test_a_time_without_an_end_is_refused() -> None:
    asked = ["tune", "m", "--rows", "r", "--catalog", "c", "--minutes", "inf"]
    result = CliRunner().invoke(app, asked)

    assert result.exit_code == ExitCode.WRONG_USE
    assert "--minutes" in result.output
