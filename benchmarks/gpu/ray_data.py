"""The rows of a file by Ray Data LLM, which starts an engine for them.

python -m benchmarks.gpu.ray_data CATALOG MODEL ROWS

Prints in JSON the seconds from the beginning to the first row, and from there to the last.
"""

import json
import os
import sys
import time
from pathlib import Path

from benchmarks.bare import alone_arguments
from shared.catalog_file import load_catalog
from worker.engine_environment import engine_environment


def main(path: Path, name: str, rows: Path) -> None:
    catalog = load_catalog(path)
    model, pool = catalog.model(name), catalog.pools[catalog.lane_of(name).pool]
    arguments = alone_arguments(model, pool)
    arguments.pop("scheduling_policy", None)
    os.environ.update(engine_environment(model, pool))
    began = time.perf_counter()
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
    first_at, count = 0.0, 0
    for _ in processor(ray.data.from_items(lines)).iter_rows():
        first_at = first_at or time.perf_counter()
        count += 1
    assert count == len(lines), f"{count} of {len(lines)} rows came back"
    print(json.dumps({"first": first_at - began, "seconds": time.perf_counter() - first_at}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
