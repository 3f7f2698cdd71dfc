"""The fleet and the bare engines beside it, and the steps that the cases share."""

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import psutil
from openai.types import Batch

from benchmarks.bare import BareProcess
from benchmarks.bench_fleet import BenchFleet, bare_environment
from benchmarks.figures import Figure, bounded, compared
from benchmarks.gpu.load import watched
from benchmarks.gpu.plan import KINDS, Plan
from benchmarks.gpu.results import CaseResult
from benchmarks.gpu.texts import equal, rows, text
from benchmarks.noted_steps import steps_between
from benchmarks.rows import CHAT, EMBEDDINGS
from cli.fleet import Fleet
from shared.engine_starts import Start

_POLL_SECONDS = 0.1
#: Of a replica that is removed.
_END_SECONDS = 90
_ENDS = ("completed", "failed", "expired", "cancelled")
#: Rows before a measurement on an engine that has not run any.
_WARM_ROWS = 600


class Bench:
    """What is measured with, in one run."""

    def __init__(self, fleet: Fleet, plan: Plan, catalog: Path) -> None:
        self.fleet = fleet
        self.plan = plan
        self.catalog = catalog
        self.case = CaseResult()
        self._files = fleet.run_dir / "rows"
        self._files.mkdir(exist_ok=True)
        self._bares: dict[str, BareProcess] = {}
        self.view: BenchFleet

    def connect(self) -> None:
        """Become a client of the fleet, which has started."""
        self.view = BenchFleet(self.fleet, catalog=self.catalog)

    def view_of(self, chat: str, embeddings: str) -> BenchFleet:
        """The fleet as other benchmarks see it, with these models."""
        return BenchFleet(self.fleet, {CHAT: chat, EMBEDDINGS: embeddings}, self.catalog)

    # Engines.

    def launch_bare(self, model: str) -> None:
        """Start the bare engine of a model; it is ready some time later."""
        if model not in self._bares:
            environment = bare_environment()
            for name, folder in (
                ("VLLM_CACHE_ROOT", "vllm"),
                ("TORCHINDUCTOR_CACHE_DIR", "inductor"),
                ("TRITON_CACHE_DIR", "triton"),
            ):
                # Of its own: it starts at the same time as the fleet's.
                folders = self.fleet.run_dir.resolve() / "bare-caches"
                environment[name] = str(folders / model / folder)
            log = self.fleet.run_dir / f"bare-{model}.log"
            self._bares[model] = BareProcess(
                self.catalog, model, KINDS[model], environment, log=log
            )

    def bare(self, model: str) -> BareProcess:
        """The bare engine of a model, once it answers."""
        self.launch_bare(model)
        self._bares[model].wait()
        return self._bares[model]

    def stop_bare(self, model: str) -> None:
        """End it, so that its memory is free."""
        if (bare := self._bares.pop(model, None)) is not None:
            bare.stop()

    def stop(self) -> None:
        """End all bare engines."""
        for model in list(self._bares):
            self.stop_bare(model)

    def start_engines(self, both: Sequence[str], only_ours: Sequence[str]) -> Iterator[Figure]:
        """Start engines on both sides and of the fleet alone, at once; says when each is ready."""
        began = time.perf_counter()
        waking = {model: self.wake(model) for model in (*both, *only_ours)}
        for model, batch in waking.items():
            self.ended(batch)
            yield bounded(
                f"seconds until the fleet's {model} has its first rows, all engines at once",
                time.perf_counter() - began, 0.0, unit="s", goal=None,
            )  # fmt: skip
        for model in both:
            yield bounded(
                f"seconds until the bare {model} answers, all engines at once",
                self.bare(model).start_seconds, 0.0, unit="s", goal=None,
            )  # fmt: skip

    def wake(self, model: str) -> Batch:
        """A batch that lets the fleet start the model's engine."""
        return self.create(model, self._few(model, 2, 4))

    def warm(self, model: str) -> None:
        """Run rows that are not measured, on both sides."""
        content = self._few(model, self.plan.rows(_WARM_ROWS), 32)
        self.ended(self.create(model, content))
        if model in self._bares:
            self.bare(model).ask("file", path=str(self.file(content)))

    def remove(self, model: str) -> None:
        """Take the model's engine from the card for good."""
        replicas = self.replicas(model)
        self._ray_do("remove", model)
        psutil.wait_procs(replicas, timeout=_END_SECONDS)

    def put_to_sleep(self, model: str) -> None:
        """Take the model's engine from the card, as an idle one goes: the next row starts it."""
        self.remove(model)
        self._ray_do("restore", model)

    def replicas(self, model: str) -> list[psutil.Process]:
        """The processes of the model's replicas."""
        return [psutil.Process(int(pid)) for pid in self._ray_do("pids", model).split()]

    def start(self, model: str) -> Start:
        """What the start of the model's only replica was made of."""
        [start] = msgspec.json.decode(self._ray_do("starts", model), type=list[Start])
        return start

    def wait_for_replicas(self, model: str, count: int) -> None:
        """Return when so many of them run: each batch lets Serve start more of them."""
        while len(self.replicas(model)) < count:
            self.ended(self.create(model, self._few(model, self.plan.rows(2_000), 32)))

    def _ray_do(self, what: str, model: str) -> str:
        """What `benchmarks.cluster` says, which is a client of the fleet's Ray."""
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.cluster", what, str(self.catalog), model],
            env={**os.environ, **self.fleet.ray.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=120,
            check=True,
        )
        return done.stdout

    # Rows and batches.

    def file(self, content: bytes) -> Path:
        """A file of these rows, for a bare engine."""
        path = self._files / f"{time.time_ns()}.jsonl"
        path.write_bytes(content)
        return path

    def create(self, model: str, content: bytes) -> Batch:
        """A batch of these rows."""
        return self.view.create(KINDS[model], self.file_id(content))

    def file_id(self, content: bytes) -> str:
        """The id of an input with these rows."""
        file = self.view.client.files.create(file=("rows.jsonl", content), purpose="batch")
        return file.id

    def ended(self, batch: Batch, see: Callable[[Batch], None] | None = None) -> Batch:
        """The batch once it has completed. Raises RuntimeError where a row of it has failed."""
        while batch.status not in _ENDS:
            time.sleep(_POLL_SECONDS)
            batch = self.view.client.batches.retrieve(batch.id)
            if see is not None:
                see(batch)
        counts = batch.request_counts
        if batch.status != "completed" or counts is None or counts.failed:
            reason = self._first_error(batch)
            raise RuntimeError(f"The batch ended as {batch.status}: {counts}, {reason}")
        return batch

    def cancel_all(self) -> None:
        """Cancel what a case that was given up has left."""
        for batch in self.view.client.batches.list(limit=20):
            if batch.status in ("validating", "in_progress"):
                self.view.client.batches.cancel(batch.id)

    # Measurements.

    def by_fleet(
        self,
        model: str,
        content: bytes,
        see: Callable[[Batch], None] | None = None,
        *,
        kind: str | None = None,
    ) -> float:
        """Seconds from a batch's creation to its completion."""
        kind, file_id = kind or KINDS[model], self.file_id(content)

        def run() -> dict[str, Any]:
            began = time.perf_counter()
            self.ended(self.view.create(kind, file_id), see)
            return {"seconds": time.perf_counter() - began}

        return float(self.measured(f"fleet, {model}", content, run)["seconds"])

    def by_bare(self, model: str, content: bytes, do: str = "file", **how: Any) -> float:
        """Seconds on the bare engine."""
        bare, path = self.bare(model), str(self.file(content))
        say = f"{do} {' '.join(how) if do == 'file' else ''}".strip()
        found = self.measured(
            f"bare engine, {model}, {say}", content, lambda: bare.ask(do, path=path, **how)
        )
        return float(found["seconds"])

    def measured(
        self, side: str, content: bytes, run: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """What a side says, kept with its load and printed as a line."""
        began = time.monotonic()
        with watched() as load:
            found = run()
        ended = time.monotonic()
        count = content.count(b"\n")
        rate = count / found["seconds"]
        self.case.measured.append(
            {"side": side, "rows": count, "rows_per_second": rate, **found, "load": asdict(load)}
        )
        print(f"  {side}: {count} rows, {rate:.1f} rows/s; {load.text()}", flush=True)
        if self.plan.steps and (steps := steps_between(self.plan.steps, began, ended)):
            print(f"    {steps.text()}", flush=True)
        return found

    def ratio(
        self,
        name: str,
        model: str,
        make: Callable[[], bytes],
        *,
        goal: float,
        bare: str | None = None,
        turns: int | None = None,
        kind: str | None = None,
    ) -> Figure:
        """Rows a second of the fleet, over those of the bare engine, in turns on the same rows."""
        fleet_rates, bare_rates = list[float](), list[float]()
        for turn in range(turns or self.plan.turns):
            content = make()
            count = content.count(b"\n")

            def on_fleet(content: bytes = content, count: int = count) -> None:
                fleet_rates.append(count / self.by_fleet(model, content, kind=kind))

            def on_bare(content: bytes = content, count: int = count) -> None:
                bare_rates.append(count / self.by_bare(bare or model, content))

            # Each side is as often the first one.
            for one in (on_bare, on_fleet) if turn % 2 == 0 else (on_fleet, on_bare):
                one()
        return compared(
            name,
            statistics.median(fleet_rates),
            statistics.median(bare_rates),
            unit="rows/s",
            goal=goal,
            sense="at least",
        )

    def _few(self, model: str, count: int, tokens: int) -> bytes:
        if KINDS[model] == CHAT:
            return equal(model, count, 50, tokens)
        dice = random.Random(count)
        return rows(model, EMBEDDINGS, [text(40, dice) for _ in range(count)])

    def _first_error(self, batch: Batch) -> str:
        """Why a row failed: its code and message, which hold nothing of it."""
        if batch.error_file_id is None:
            return str(batch.errors)
        first = self.view.client.files.content(batch.error_file_id).content.splitlines()[0]
        return str(json.loads(first)["error"])
