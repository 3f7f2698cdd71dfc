from typing import Any

import pytest

from shared.catalog import Catalog
from worker.engine_need import EngineNeed, needs

_EIGHT = {"CPU": 64, "GPU": 8}


def _need(engine: dict[str, int], **pool: Any) -> EngineNeed:
    given = {"accelerator_type": "H100", **pool}
    model = {"pools": ["h100"], "engine": engine}
    [found] = needs(Catalog.model_validate({"pools": {"h100": given}, "models": {"m": model}}))
    return found


def test_an_engine_has_a_bundle_for_each_of_its_workers() -> None:
    need = _need({"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, machine=_EIGHT)

    assert (need.gpus, len(need.bundles), need.problem) == (4, 4, None)
    assert str(need) == (
        "m on h100: an engine has 4 GPUs, in the bundles 1 x {GPU: 1, accelerator_type:H100, "
        "CPU: 1} + 3 x {GPU: 1, accelerator_type:H100}; at most 1 of them; 1 machine"
    )


def test_a_pool_that_says_nothing_of_its_machines_is_asked_nothing() -> None:
    need = _need({"tensor_parallel_size": 64})

    assert need.problem is None
    assert str(need).endswith("the pool does not say what a `machine` has")


@pytest.mark.parametrize(("workers", "machines"), [(8, 1), (9, 2), (16, 2), (17, 3)])
def test_an_engine_is_on_as_many_machines_as_its_bundles_fill(workers: int, machines: int) -> None:
    enough = _need({"tensor_parallel_size": workers}, machine=_EIGHT, max_machines=machines)
    assert enough.problem is None

    if machines > 1:
        few = _need({"tensor_parallel_size": workers}, machine=_EIGHT, max_machines=machines - 1)
        assert few.problem == (
            f"its engine has {workers} GPUs and needs {machines} machines, and the pool has "
            f"{machines - 1}"
        )


def test_a_worker_that_fits_on_no_machine_is_a_problem() -> None:
    need = _need({}, resources={"GPU": 2, "CPU": 40}, machine={"CPU": 32, "GPU": 4})

    assert need.problem == (
        "a worker of its engine needs {GPU: 2, CPU: 40, accelerator_type:H100}, and a machine has "
        "{CPU: 32, GPU: 4}"
    )


def test_the_processor_of_the_replica_has_to_fit_too() -> None:
    """The first bundle has it, beside the GPU of the first worker."""
    assert _need({}, machine={"GPU": 8}).problem is not None
    assert _need({}, machine={"GPU": 8, "CPU": 1}).problem is None


def test_engines_share_a_gpu_and_a_machine_of_another_kind_does_not_have_it() -> None:
    quarter = {"accelerator_type": None, "resources": {"GPU": 0.25}}
    assert _need({}, **quarter, machine={"GPU": 1, "CPU": 4}).gpus == 0.25
    custom = {"accelerator_type": None, "resources": {"neuron_cores": 2}}
    assert _need({}, **custom, machine={"CPU": 4}).problem is not None
