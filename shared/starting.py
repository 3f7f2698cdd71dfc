"""How an engine starts: the entry `start` of a model in the catalog. Pure."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

#: vLLM's own variables.
CACHE_VARIABLE = "VLLM_CACHE_ROOT"
PLAN_VARIABLE = "VLLM_ENABLE_STARTUP_PLAN"


def _absolute(folder: str) -> str:
    if not folder.startswith("/"):
        raise ValueError("it is a folder on each of the pool's machines, so it begins with /")
    return folder


class Starting(BaseModel):
    """What makes a start shorter, or longer for something else in return."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    core: Literal["forked", "spawned"] = "forked"
    plan: bool = True
    cache: Annotated[str, AfterValidator(_absolute)] | None = None
    load_format: str | None = None
    optimization_level: int | None = Field(default=None, ge=0, le=3)

    @property
    def arguments(self) -> dict[str, Any]:
        """What of it is an argument of vLLM's."""
        found = {"load_format": self.load_format, "optimization_level": self.optimization_level}
        return {name: value for name, value in found.items() if value is not None}

    def environment(self, *, has_card: bool) -> dict[str, str]:
        """What of it is in the environment of vLLM's processes."""
        cache = {} if self.cache is None else {CACHE_VARIABLE: self.cache}
        # Without a card there is nothing to plan.
        return {**cache, PLAN_VARIABLE: str(int(self.plan))} if has_card else cache


def starting_problems(
    start: Starting, engine: Mapping[str, Any], env: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Fields that do not go together with `engine` or `env` of the same model, and why."""
    for name in start.arguments:
        if name in engine:
            yield name, f"`engine` says it, too; say it here or there, as `{name}`"
    for field, variable in (("cache", CACHE_VARIABLE), ("plan", PLAN_VARIABLE)):
        if field in start.model_fields_set and variable in env:
            yield field, f"`env` has {variable}, which is the same; say it once"
    if start.optimization_level and engine.get("enforce_eager"):
        yield (
            "optimization_level",
            "`enforce_eager` compiles nothing, so there is nothing to optimize; leave out one",
        )
