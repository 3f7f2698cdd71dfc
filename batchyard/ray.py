"""Ray Data, asked by a Batchyard fleet: on any Ray cluster, whose own machines need no model."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa

from batchyard.options import Options, require_known
from batchyard.requests import Template
from batchyard.running import run as run_rows
from batchyard.target import target_of

if TYPE_CHECKING:
    from ray.data import Dataset

#: A worker waits for its batch and computes nothing.
_CPUS = 0.1


class BatchyardModel:
    """For `dataset.map_batches(BatchyardModel, …)`: each block is a batch of the fleet.

    The same block and options are the same batch, so a task that Ray runs again, or a program that
    begins again, takes up the answers that there are. Blocks come and go as Arrow, pandas or NumPy.
    """

    def __init__(self, template: Template, **options: Unpack[Options]) -> None:
        """As `batchyard.run`. Without `base_url`, each worker looks for it.

        Raises InvalidInputError.
        """
        require_known(options)
        self._template = template
        self._options: Options = {**options, "progress": False}

    def __call__(self, block: Any) -> Any:
        """The block with its answers' columns. Raises what `batchyard.run` raises."""
        rows = _columns(block) if isinstance(block, Mapping) else block
        if not len(rows):
            return block
        return run_rows(rows, self._template, **self._options)


def run(
    dataset: "Dataset", template: Template, *, concurrency: int = 8, **options: Unpack[Options]
) -> "Dataset":
    """The dataset with its answers' columns: so many blocks are asked side by side.

    The gateway and the key of the calling program go to the workers. Blocks are asked as they are:
    `dataset.repartition` changes how many rows are a batch.
    """
    require_known(options)
    target = target_of(options.get("base_url"), options.get("api_key"), options.get("context"))
    asked: dict[str, Any] = {**options, "base_url": target.url, "api_key": target.key}
    asked.pop("context", None)
    return dataset.map_batches(
        BatchyardModel,
        batch_size=None,
        batch_format="pyarrow",
        fn_constructor_args=(template,),
        fn_constructor_kwargs=asked,
        concurrency=concurrency,
        num_cpus=_CPUS,
    )


def _columns(block: Mapping[str, Any]) -> pa.Table:
    """NumPy's columns, as Ray gives them unless another form is asked for."""
    return pa.table({name: pa.array(list(column)) for name, column in block.items()})
