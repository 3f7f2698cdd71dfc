"""Whether a model's engine runs, as its clients may know it. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

from shared.engines import EngineRecord
from shared.openai.shapes import ModelState


class EngineView(NamedTuple):
    """What clients see of a model's engines."""

    state: ModelState
    #: Those that run.
    replicas: int


def engine_view(engines: Iterable[EngineRecord]) -> EngineView:
    """The engines of one model, on all of its pools, together."""
    known = list(engines)
    running = sum(one.state == "running" for engine in known for one in engine.replicas)
    if running:
        return EngineView("warm", running)
    are_starting = any(engine.state in ("waiting", "starting") for engine in known)
    return EngineView("starting" if are_starting else "cold", 0)
