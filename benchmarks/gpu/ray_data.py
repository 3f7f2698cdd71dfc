"""The rows of a file by Ray Data LLM, which starts an engine for them.

python -m benchmarks.gpu.ray_data CATALOG MODEL ROWS

Prints in JSON the seconds of the job, which begins with an engine's start, and in how many of them
how many rows came after the first ones.
"""

import json
import os
import sys
import time
from pathlib import Path

from benchmarks.bare import alone_arguments
from shared.catalog_file import load_catalog
from worker.engine_environment import engine_environment

#: Rows that come in this time after the first one are of the same block.
_AT_ONCE_SECONDS = 0.2


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
    began = time.perf_counter()
    done = processor(ray.data.from_items(lines))
    came = [time.perf_counter() for _ in done.iter_rows()]
    assert len(came) == len(lines), f"{len(came)} of {len(lines)} rows came back"
    assert came[-1] - came[0] > _AT_ONCE_SECONDS, "all rows came back at once"
    first = sum(at - came[0] < _AT_ONCE_SECONDS for at in came)
    print(
        json.dumps(
            {
                "all": came[-1] - began,
                "later": came[-1] - came[0],
                "rows_later": len(came) - first,
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
