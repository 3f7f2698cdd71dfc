"""The fleet on a real Ray with a real vLLM engine and a tiny model, all of whose processes die."""

from collections.abc import Iterator
from contextlib import suppress

import psutil
import yaml

from cli.fleet.catalog import CHAT_MODEL, make_catalog
from cli.fleet.ray import RayNode
from cli.servers import Child
from tests.chaos.fleet import RAY_TOKEN, SETTINGS, ChaosFleet
from tests.chaos.plan import LANE_JOB, RAY_TARGETS, REAL
from tests.chaos.rows import REAL_MODEL

_RAY = "ray"
#: What Ray calls the processes of a wave.
_WAVE_STEPS = ("SliceMapper", "MapWorker")


class RealFleet(ChaosFleet):
    """`ChaosFleet` with Ray and vLLM in it."""

    aims = REAL
    models = (REAL_MODEL,)
    # A lane job is up in ten seconds and an engine in forty, on a machine that has nothing else.
    settings = SETTINGS | {
        "BATCHYARD_CLAIM_SECONDS": "15",
        "BATCHYARD_LANE_JOB_SILENCE_SECONDS": "30",
        "BATCHYARD_LINGER_SECONDS": "30",
    }
    servers = (*ChaosFleet.servers, _RAY)
    stall_seconds = 900.0
    has_deadly_rows = has_live_calls = False
    _ray: RayNode

    def write_catalog(self) -> None:
        catalog = yaml.safe_load(make_catalog(self.run_dir, []).read_text())
        catalog["models"] = {REAL_MODEL: catalog["models"][CHAT_MODEL]}
        # A narrow engine: few rows are enough for a wave.
        catalog["models"][REAL_MODEL]["engine"]["max_num_seqs"] = 32
        self.catalog.write_text(yaml.safe_dump(catalog))

    def launch_ray(self) -> None:
        self._ray = RayNode(self.run_dir, RAY_TOKEN, self.whole_environment(LANE_JOB))
        self._ray.launch()
        self._ray.wait(600)

    @property
    def ray_address(self) -> tuple[str, int]:
        return "127.0.0.1", self.ports.get("ray-dashboard-port")

    def stop(self) -> None:
        super().stop()
        if hasattr(self, "_ray"):
            self._ray.stop()

    def server_children(self, name: str) -> list[Child]:
        return [self._ray.child] if name == _RAY else super().server_children(name)

    async def serve_again(self, name: str) -> None:
        if name != _RAY:
            await super().serve_again(name)
            return
        self.counts["restarts"] += 1
        self._ray.stop()
        self._ray.launch()

    def lane_jobs(self) -> list[int]:
        return self.pids(LANE_JOB)

    def pids(self, name: str) -> list[int]:
        if name not in RAY_TARGETS:
            return super().pids(name)
        return [process.pid for process, line in self._descendants() if _is(name, line)]

    def _descendants(self) -> Iterator[tuple[psutil.Process, list[str]]]:
        """Ray's own processes with their command lines: titles hide their environments."""
        with suppress(psutil.Error):
            for process in psutil.Process(self._ray.child.pid).children(recursive=True):
                with suppress(psutil.Error):
                    if line := process.cmdline():
                        yield process, line


def _is(name: str, line: list[str]) -> bool:
    match name:
        case "lane-job":
            return line[1:4] == ["-m", "worker", "lane"]
        case "engine-core":
            return "EngineCore" in " ".join(line)
        case "replica":
            return line[0].startswith("ray::") and ":engine" in line[0]
        case "wave":
            return line[0].startswith("ray::") and any(step in line[0] for step in _WAVE_STEPS)
        case "raylet" | "gcs":
            return line[0].endswith({"raylet": "/raylet", "gcs": "/gcs_server"}[name])
        case _:
            return False
