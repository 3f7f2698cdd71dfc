import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from shared.catalog_file import catalog_digest
from worker.catalog import wait_for_catalog


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    path = tmp_path / "catalog.yaml"
    path.write_text("pools: {}\n")
    return path


def test_the_right_catalog_and_any_catalog_are_taken_at_once(catalog: Path) -> None:
    with capture_logs() as logs:
        wait_for_catalog(catalog, catalog_digest(catalog), patience_seconds=0)
        wait_for_catalog(catalog, "", patience_seconds=0)

    assert logs == []


def test_another_catalog_is_waited_for(catalog: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.yaml"
    new.write_text("pools: {cpu: {}}\n")
    waiting = threading.Thread(
        target=wait_for_catalog,
        args=(catalog, catalog_digest(new)),
        kwargs={"patience_seconds": 600},
        daemon=True,
    )

    waiting.start()
    is_held_back = waiting.is_alive()
    new.replace(catalog)
    waiting.join(60)

    assert is_held_back
    assert not waiting.is_alive()


def test_a_catalog_that_stays_another_one_is_used_and_logged(catalog: Path) -> None:
    with capture_logs() as logs:
        wait_for_catalog(catalog, "0" * 16, patience_seconds=0)

    assert [log["event"] for log in logs] == ["lane_job.other_catalog"]
