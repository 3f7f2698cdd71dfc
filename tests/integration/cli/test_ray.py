"""The Ray of `batchyard up`, without a fleet around it."""

import importlib.util
import os
import secrets
import tempfile
from pathlib import Path

import httpx

from cli.fleet.ray import RayNode
from tests.eventually import wait_until
from tests.servers import absent

_TOKEN = secrets.token_hex(32)


def test_logs_of_jobs_lie_in_the_run_directory_and_stay_there(tmp_path: Path) -> None:
    if importlib.util.find_spec("ray") is None:
        absent("Ray", "PATH")
    # Longer than a socket's path may be.
    run_dir = tmp_path / ("long-" * 20)
    run_dir.mkdir()
    environment = {name: text for name, text in os.environ.items() if "BATCHYARD" not in name}
    node = RayNode(run_dir, _TOKEN, environment)
    try:
        node.launch()
        # So it ends by itself on a machine that is too busy for its own time limit.
        node.child.kill()
        node.wait()
        wait_until(lambda: _submit(node, "said-by-the-job"), timeout=120)
        log = run_dir / "ray-logs" / "job-driver-said-by-the-job.log"
        wait_until(lambda: log.exists() and "hello" in log.read_text(), timeout=120)
        assert log.resolve().is_relative_to(run_dir.resolve())
        assert "hello" in node.job_log("said-by-the-job")
        # Ray's own link to the session is missing for a moment whenever a worker starts.
        assert "session_latest" not in str((run_dir / "ray-logs").readlink())
        assert len(_short_paths_to(run_dir)) == 1
        scratch = Path(node.environment["TMPDIR"])
        assert scratch.resolve() == (run_dir / "ray" / "scratch").resolve()
        # A socket's path has 107 bytes at most, and programs add names of their own.
        assert len(str(scratch)) < 60
        for name in ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
            assert Path(node.environment[name]).is_relative_to(run_dir)
    finally:
        node.stop()

    assert "hello" in log.read_text()
    assert not (run_dir / "ray" / "scratch").exists()
    assert _short_paths_to(run_dir) == []
    assert [path for path in run_dir.rglob("*") if path.is_socket()] == []
    # Ray lets every user write into the folder that it is given.
    assert (run_dir / "ray").stat().st_mode & 0o077 == 0


def _submit(node: RayNode, job: str) -> bool:
    return httpx.post(
        f"{node.address}/api/jobs/",
        headers={"Authorization": f"Bearer {_TOKEN}"},
        json={"entrypoint": "echo hello", "submission_id": job},
        timeout=60,
    ).is_success


def _short_paths_to(run_dir: Path) -> list[Path]:
    links = Path(tempfile.gettempdir()).glob("batchyard-*/ray")
    return [link for link in links if run_dir.resolve() in link.resolve().parents]
