"""The rows of a file by Ray Data LLM, which starts an engine for them.

python -m benchmarks.gpu.ray_data CATALOG MODEL ROWS

Prints in JSON the seconds of a job of its first rows, which are nearly all an engine's start, and
of a job of all rows.
"""

import json
import os
import sys
import time
from pathlib import Path

from benchmarks.bare import alone_arguments
from shared.catalog_file import load_catalog
from worker.engine_environment import engine_environment

_FEW = 16


def main(path: Path, name: str, rows: Path) -> None:
    catalog = load_catalog(path)
    model, pool = catalog.model(name), catalog.pools[catalog.lane_of(name).pool]
    arguments = alone_arguments(model, pool)
    arguments.pop("scheduling_policy", None)
    os.environ.update(engine_environment(model, pool))
    import ray
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    from benchmarks.versus import answered, asked

    # Each of its stages holds a core while it waits.
    cores = max(8, os.cpu_count() or 1)
    ray.init(address="local", num_cpus=cores, include_dashboard=False, log_to_driver=False)
    resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
    gpus = {"GPU": 1} if resources.get("GPU") else {}
    config = vLLMEngineProcessorConfig(
        model_source=model.source,
        engine_kwargs=arguments,
        placement_group_config={"bundles": [{"CPU": 1, **gpus}]},
        concurrency=1,
        batch_size=64,
        log_engine_metrics=False,
    )
    processor = build_processor(config, preprocess=asked, postprocess=answered)
    lines = [json.loads(line) for line in rows.read_text().splitlines()]
    seconds = []
    for part in (lines[:_FEW], lines):
        began = time.perf_counter()
        done = processor(ray.data.from_items(part)).take_all()
        seconds.append(time.perf_counter() - began)
        assert len(done) == len(part), f"{len(done)} of {len(part)} rows came back"
    print(json.dumps({"few": seconds[0], "all": seconds[1]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
