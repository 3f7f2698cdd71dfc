"""What engines leave behind lies in the run directory, and goes with the fleet."""

from pathlib import Path

from cli.fleet.catalog import CHAT_MODEL
from tests.e2e.conftest import RunningFleet


def test_engines_keep_temporary_files_and_caches_in_the_run_directory(
    warm_chat: RunningFleet,
) -> None:
    engines = warm_chat.engines(CHAT_MODEL)
    run_dir = warm_chat.run_dir.resolve()

    assert engines
    # Where the processes of one engine have met.
    assert [*(run_dir / "ray" / "scratch").glob("vllm_dist_*")]
    for process in engines:
        environment = process.environ()
        for name in ("TMPDIR", "VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
            assert Path(environment[name]).resolve().is_relative_to(run_dir), name
