"""A Ray cluster of the test's own."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: Fetches nothing from the network, reports nothing, and gets its share of the cores.
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Other tests would starve the cluster that yields to them.
    "RAY_worker_niceness": "0",
}


def _start_ray(cpus: int) -> None:
    """Start a cluster of one node, a second time where a part of it has not come within 30 seconds.

    Ray gives them no longer, and on a machine where other tests start engines that may be too
    short. And where threads of engines are busy, a child of this process may never come to life.
    """
    import ray

    for is_last in (False, True):
        try:
            ray.init(
                "local",
                num_cpus=cpus,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=40,
            )
        except Exception as error:
            if is_last or "timed out" not in str(error).lower():
                raise
            ray.shutdown()
        else:
            return


@contextmanager
def a_ray(cpus: int) -> Iterator[Any]:
    """A private Ray cluster with token authentication, which `ray.init` turns on by itself."""
    import ray
    from ray._private import auto_init_hook
    from ray.serve.context import _set_global_client

    before = {name: os.environ.get(name) for name in (*QUIET, "RAY_ADDRESS")}
    os.environ.update(QUIET)
    os.environ.pop("RAY_ADDRESS", None)
    try:
        _start_ray(cpus)
        # A handle that outlives the cluster would start another one to report to.
        auto_init_hook.enable_auto_connect = False
        yield ray
    finally:
        # Also after a failure: the next test's cluster could not start beside this one.
        ray.shutdown()
        # Serve would look for the controller of this cluster in the next one.
        _set_global_client(None)  # type: ignore[no-untyped-call]  # Ray's
        # Its handles keep reporting to a controller that is gone, and log each failure.
        logging.getLogger("ray.serve").setLevel(logging.CRITICAL)
        for name, value in before.items():
            if value is not None:
                os.environ[name] = value
            else:
                os.environ.pop(name, None)
