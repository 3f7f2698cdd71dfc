"""The same prompts by four ways, times side by side: `python -m benchmarks.versus`.

`LLM.generate` once for each batch, in one process; Ray Data LLM, and `vllm run-batch`, a job for
each batch; and Batchyard. Every way has vLLM with the same arguments on the same machine, one way
at a time. A way that starts an engine for each batch is measured over few batches of a case, and
its times are said for all of them. Writes benchmarks/results-versus.json and its table.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from openai.types import Batch

from benchmarks.bare import alone_arguments
from benchmarks.bench_fleet import BenchFleet, running_fleet
from benchmarks.rows import CHAT, lines
from benchmarks.versus_table import (
    BATCHYARD,
    RAY_DATA,
    RESULTS,
    RUN_BATCH,
    SYNC,
    Case,
    Comparison,
    Times,
    publish,
    published,
    tables,
)
from benchmarks.vllm_serve import flag
from cli.fleet.catalog import CHAT_MODEL
from shared.catalog_file import load_catalog

_JOB_SECONDS = 3600
_RAY_CORES = 8
#: Threads of the client that sends many batches.
_SENDERS = 8


def batch_lines(number: int, case: Case, tokens: int, *, first: int = 0) -> list[dict[str, Any]]:
    """The requests of one batch: no two batches have the same ones.

    `first` rows are left out, so that no engine has seen the beginnings of the others.
    """
    begin = first + number * case.rows
    body = lines(CHAT, begin + case.rows, model=CHAT_MODEL, tokens=tokens)
    return [json.loads(line) for line in body.splitlines()[begin:]]


def batches_of(case: Case, tokens: int, *, first: int) -> list[list[dict[str, Any]]]:
    """The requests of all batches."""
    return [batch_lines(number, case, tokens, first=first) for number in range(case.batches)]


def arguments_of(catalog: Path) -> tuple[str, dict[str, Any]]:
    """The model's source, and the arguments of its engine without Batchyard's own."""
    loaded = load_catalog(catalog)
    model = loaded.model(CHAT_MODEL)
    arguments = alone_arguments(model, loaded.pools[loaded.lane_of(CHAT_MODEL).pool])
    arguments.pop("scheduling_policy", None)
    return model.source, arguments


def environment_of(catalog: Path) -> dict[str, str]:
    """What the model's engines find in their environment."""
    from worker.engine_environment import engine_environment

    loaded = load_catalog(catalog)
    return engine_environment(
        loaded.model(CHAT_MODEL), loaded.pools[loaded.lane_of(CHAT_MODEL).pool]
    )


def by_generate(catalog: Path, batches: Sequence[list[dict[str, Any]]]) -> Iterator[float]:
    """Seconds of the start, and of each batch; one waits for the one before."""
    source, arguments = arguments_of(catalog)
    began = time.perf_counter()
    # A script of its own begins with it, too.
    from vllm import LLM, SamplingParams

    llm = LLM(source, **arguments)
    yield time.perf_counter() - began
    for batch in batches:
        began = time.perf_counter()
        sampling = [
            SamplingParams(max_tokens=one["body"]["max_tokens"], temperature=0, ignore_eos=True)
            for one in batch
        ]
        llm.chat([one["body"]["messages"] for one in batch], sampling, use_tqdm=False)
        yield time.perf_counter() - began


def by_ray_data(catalog: Path, batches: Sequence[list[dict[str, Any]]]) -> Iterator[float]:
    """Seconds of Ray's own start, and of each batch, which is a pipeline with an engine."""
    source, arguments = arguments_of(catalog)
    began = time.perf_counter()
    import ray
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    # Each of its stages holds a core while it waits; with two, none would begin.
    ray.init(
        address="local",
        num_cpus=max(_RAY_CORES, os.cpu_count() or 1),
        include_dashboard=False,
        log_to_driver=False,
    )
    config = vLLMEngineProcessorConfig(
        model_source=source,
        engine_kwargs=arguments,
        # As the pool of the demo has it: an engine needs a core, and no GPU.
        placement_group_config={"bundles": [{"CPU": 1}]},
        concurrency=1,
        batch_size=64,
        log_engine_metrics=False,
    )
    processor = build_processor(config, preprocess=asked, postprocess=answered)
    yield time.perf_counter() - began
    for batch in batches:
        began = time.perf_counter()
        done = processor(ray.data.from_items(batch)).take_all()
        assert len(done) == len(batch)
        yield time.perf_counter() - began


def asked(row: dict[str, Any]) -> dict[str, Any]:
    """A line of a batch, as Ray Data LLM takes it."""
    sampling = {"max_tokens": row["body"]["max_tokens"], "temperature": 0, "ignore_eos": True}
    return {"messages": row["body"]["messages"], "sampling_params": sampling}


def answered(row: dict[str, Any]) -> dict[str, Any]:
    """What Ray Data LLM gives back, without all that it was asked."""
    return {"text": row["generated_text"]}


def by_run_batch(catalog: Path, batches: Sequence[list[dict[str, Any]]]) -> Iterator[float]:
    """No seconds of a start, and those of each batch, whose process starts an engine."""
    source, arguments = arguments_of(catalog)
    flags = [flag(name, value) for name, value in arguments.items()]
    module = "vllm.entrypoints.openai.run_batch"
    yield 0.0
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder) / "in.jsonl", Path(folder) / "out.jsonl"
        for batch in batches:
            began = time.perf_counter()
            asked.write_text("".join(f"{json.dumps(one)}\n" for one in batch))
            names = [f"--model={source}", f"--served-model-name={CHAT_MODEL}"]
            files = ["-i", str(asked), "-o", str(answered)]
            subprocess.run(
                [sys.executable, "-m", module, *files, *names, *flags],
                check=True,
                capture_output=True,
                timeout=_JOB_SECONDS,
            )
            assert len(answered.read_text().splitlines()) == len(batch)
            yield time.perf_counter() - began


def by_batchyard(fleet: BenchFleet, batches: Sequence[list[dict[str, Any]]]) -> float:
    """Seconds from the first upload to the end of all batches, on a warm engine."""

    def sent(batch: list[dict[str, Any]]) -> Batch:
        content = "".join(f"{json.dumps(one)}\n" for one in batch).encode()
        file = fleet.client.files.create(file=("rows.jsonl", content), purpose="batch")
        return fleet.create(CHAT, file.id)

    began = time.perf_counter()
    with ThreadPoolExecutor(_SENDERS) as threads:
        for one in list(threads.map(sent, batches)):
            fleet.finish(one)
    return time.perf_counter() - began


WAYS: dict[str, Callable[[Path, Sequence[list[dict[str, Any]]]], Iterator[float]]] = {
    SYNC: by_generate,
    RAY_DATA: by_ray_data,
    RUN_BATCH: by_run_batch,
}


def measured(
    way: str, fleet: BenchFleet, case: Case, *, tokens: int, most: int, first: int
) -> Times:
    """The way in a process of its own, over at most so many batches."""
    few = case.batches if way == SYNC else min(case.batches, most)
    command = [sys.executable, "-m", "benchmarks.versus", "--way", way, f"--first={first}"]
    command += ["--catalog", str(fleet.catalog), "--tokens", str(tokens)]
    busy = clock_seconds()
    ended = subprocess.run(
        [*command, "--case", f"{few}x{case.rows}"],
        env={**fleet.bare_environment, **environment_of(fleet.catalog)},
        capture_output=True,
        text=True,
        timeout=_JOB_SECONDS,
        check=False,
    )
    if ended.returncode:
        raise RuntimeError(f"{way} ended with {ended.returncode}: {ended.stderr[-2000:]}")
    said = next(line for line in ended.stdout.splitlines() if line.startswith("SECONDS "))
    start, *seconds = json.loads(said.removeprefix("SECONDS "))
    return Times(start, sum(seconds) * case.batches / few, few, busy)


def compared(
    fleet: BenchFleet, case: Case, *, tokens: int, most: int, first: int, cold: float
) -> dict[str, Times]:
    """The times of all ways, one after the other."""
    busy = clock_seconds()
    work = by_batchyard(fleet, batches_of(case, tokens, first=first))
    found = {BATCHYARD: Times(cold, work, case.batches, busy)}
    for way in WAYS:
        found[way] = measured(way, fleet, case, tokens=tokens, most=most, first=first)
        print(f"{case.text()}: {way} {found[way]}, {BATCHYARD} {work:.2f} s", flush=True)
    return found


def clock_seconds() -> float:
    """How long a second of one core takes by the clock: 1 on a machine that does nothing else."""
    began, spent = time.perf_counter(), time.process_time()
    while time.process_time() - spent < 1:
        pass
    return time.perf_counter() - began


def main(
    cases: Sequence[Case], comparison: Comparison, *, most: int, turns: int, results: Path
) -> None:
    """All ways in turns, for each case; what there is so far is written after each turn."""
    tokens = comparison.tokens
    with running_fleet() as fleet:
        began = time.perf_counter()
        by_batchyard(fleet, [batch_lines(0, Case(1, 1), tokens)])
        cold, first = time.perf_counter() - began, 1
        for _ in range(turns):
            for case in cases:
                times = compared(fleet, case, tokens=tokens, most=most, first=first, cold=cold)
                comparison.add(case, times)
                publish(comparison, results)
                first += case.batches * case.rows
    print(tables(comparison))


def _case(text: str) -> Case:
    batches, _, rows = text.partition("x")
    return Case(int(batches), int(rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", type=_case, action="append", help="BATCHESxROWS; repeatable")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--most", type=int, default=2, help="engines that a case starts")
    parser.add_argument("--turns", type=int, default=1, help="how often each way is measured")
    parser.add_argument("--more", action="store_true", help="add to what was measured before")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where that is")
    parser.add_argument("--way", choices=WAYS, help="run one way, and print its seconds")
    parser.add_argument("--first", type=int, default=0, help="rows that are left out")
    parser.add_argument("--catalog", type=Path)
    given = parser.parse_args()
    cases = given.case or [Case(1, 20), Case(1, 200), Case(1, 2000), Case(50, 4)]
    if given.way:
        batches = batches_of(cases[0], given.tokens, first=given.first)
        found = list(WAYS[given.way](given.catalog, batches))
        print(f"SECONDS {json.dumps(found)}", flush=True)
        # Neither Ray nor an engine ends by itself in each version.
        os._exit(0)
    comparison = Comparison(tokens=given.tokens, cores=os.cpu_count() or 1)
    if given.more:
        comparison = published(given.results)
    main(cases, comparison, most=given.most, turns=given.turns, results=given.results)
