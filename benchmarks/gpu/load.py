"""What a measurement takes of the machine: processors by kind of process, and the card."""

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import psutil

from benchmarks.gpu import card

#: What a command line holds, and what kind of process that is. The first that fits.
_MARKS = (
    ("benchmarks.bare", "bare engine"),
    ("benchmarks.gpu", "benchmark"),
    ("EngineCore", "core"),
    ("RayWorkerProc", "core's worker"),
    ("VLLM::Worker", "core's worker"),
    ("worker.fork_server", "fronts"),
    ("ServeReplica", "replica"),
    (":engine", "replica"),
    ("worker lane", "lane job"),
    ("-m dispatcher", "dispatcher"),
    ("-m gateway", "gateway"),
    ("ServeController", "Serve's controller"),
    ("ray::", "waves"),
    ("redis-server", "Redis"),
    ("beam.smp", "RabbitMQ"),
    ("radosgw", "S3"),
    ("ceph", "S3"),
    ("raylet", "Ray"),
    ("gcs_server", "Ray"),
    ("dashboard", "Ray"),
)
_BARE = "bare engine"


@dataclass
class Load:
    """Of one measurement."""

    seconds: float = 0.0
    #: Mean number of processors, by kind of process.
    cores: dict[str, float] = field(default_factory=dict)
    #: Means over the time, and None without a card that can be asked.
    gpu_percent: float | None = None
    gpu_gib: float | None = None
    gpu_watts: float | None = None

    def text(self) -> str:
        """In one line."""
        shown = ", ".join(f"{name} {cores:.2f}" for name, cores in list(self.cores.items())[:7])
        card = "" if self.gpu_percent is None else f"GPU {self.gpu_percent:.0f} %, "
        return f"{card}cores: {shown}"


@contextlib.contextmanager
def watched() -> Iterator[Load]:
    """The load of what is done meanwhile, complete afterwards."""
    load = Load()
    kinds = dict[int, str]()
    before, began = _spent(kinds), time.perf_counter()
    with card.sampled() as samples:
        try:
            yield load
        finally:
            load.seconds = time.perf_counter() - began
        spent = defaultdict[str, float](float)
        for process, seconds in _spent(kinds).items():
            spent[kinds[process]] += seconds - before.get(process, 0.0)
        load.cores = {
            name: round(seconds / load.seconds, 3)
            for name, seconds in sorted(spent.items(), key=lambda pair: -pair[1])
            if seconds > 0.01 * load.seconds
        }
    if samples:
        columns = [sum(column) / len(samples) for column in zip(*samples, strict=True)]
        load.gpu_percent, load.gpu_gib, load.gpu_watts = columns


def _spent(kinds: dict[int, str]) -> dict[int, float]:
    """Seconds of each process that there is; adds what kind it is to `kinds`."""
    spent = {}
    for process in psutil.process_iter(["pid", "ppid", "cmdline", "cpu_times", "name"]):
        facts = process.info
        if facts["cpu_times"] is None:
            continue
        spent[facts["pid"]] = facts["cpu_times"].user + facts["cpu_times"].system
        if facts["pid"] not in kinds:
            line = " ".join(facts["cmdline"] or []) or facts["name"]
            kind = next((kind for mark, kind in _MARKS if mark in line), "others")
            # Whatever a bare engine starts is part of it.
            is_bare = kinds.get(facts["ppid"], "").startswith(_BARE)
            kinds[facts["pid"]] = f"{_BARE}'s {kind}" if is_bare and kind != _BARE else kind
    return spent
