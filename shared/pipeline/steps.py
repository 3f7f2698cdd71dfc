"""Takes rows through stages without a model, in a process without credentials."""

from collections.abc import Mapping, Sequence
from contextlib import aclosing

from shared.dataset.child import said_by
from shared.dataset.frames import Done, Kind, Problem, encoded
from shared.errors import BatchyardError
from shared.pipeline.stepping import (
    Failed,
    Item,
    Outcome,
    Passed,
    Render,
    Step,
    StepsJob,
    lines_of,
    outcomes_of,
)

_DIED = Problem(
    "rows_too_heavy",
    "A filter or a template took too much memory, or too long at one place.",
    "stages",
)
_TOO_MUCH = Problem(
    "rows_too_large",
    "The rows of one handover become more than 256 MiB in the stages before the next call.",
    "stages",
)
#: Of the rows that one handover becomes: the dispatcher holds them together.
_MAX_SAID = 256 * 1024 * 1024

_NONE: Mapping[int, bytes] = {}

#: Enough to find one row among thousands. Each may cost seconds of a core.
_MAX_DEATHS = 16


class StepsError(BatchyardError):
    """Steps that no row can take."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


async def taken_through(
    items: Sequence[Item],
    steps: Sequence[Step],
    render: Render | None,
    tokenizers: Mapping[int, bytes] = _NONE,
) -> list[Outcome]:
    """What becomes of the rows, in their order. Raises StepsError.

    `tokenizers` are the files of those that count tokens, by stage.
    A row that ends the process ends at the first of the stages; those beside it go on.
    """
    if not items or (not steps and render is None):
        return [Passed(one.id, one.columns, order=one.order) for one in items]
    return await _Taking(steps, render, tokenizers).outcomes(items)


class _Taking:
    """Rows on their way, and how many processes they have ended."""

    def __init__(
        self, steps: Sequence[Step], render: Render | None, tokenizers: Mapping[int, bytes]
    ) -> None:
        self._steps = steps
        self._render = render
        self._tokenizers = tokenizers
        self._deaths = 0

    async def outcomes(self, items: Sequence[Item]) -> list[Outcome]:
        try:
            return await _said(items, self._steps, self._render, self._tokenizers)
        except StepsError as error:
            if error.problem is not _DIED:
                raise
        self._deaths += 1
        if len(items) == 1 or self._deaths > _MAX_DEATHS:
            first = self._steps[0].stage if self._steps else -1
            stage = self._render.stage if first < 0 and self._render else first
            return [Failed(one.id, stage, _DIED.code, _DIED.message) for one in items]
        half = len(items) // 2
        return [*await self.outcomes(items[:half]), *await self.outcomes(items[half:])]


async def _said(
    items: Sequence[Item],
    steps: Sequence[Step],
    render: Render | None,
    tokenizers: Mapping[int, bytes],
) -> list[Outcome]:
    mine = {step.stage: tokenizers[step.stage] for step in steps if step.stage in tokenizers}
    bodies = (lines_of(items), *(body for _, body in sorted(mine.items())))
    sizes = {stage: len(body) for stage, body in mine.items()}
    job = StepsJob(list(steps), render, len(bodies[0]), sizes)

    async def read(source: int, start: int, end: int) -> bytes:
        return bodies[source][start:end]

    child = said_by(
        "shared.pipeline.stepper",
        encoded(Kind.JOB, job),
        sizes=[len(body) for body in bodies],
        read=read,
        died=_DIED,
    )
    found, size = list[Outcome](), 0
    async with aclosing(child) as parts:
        async for said in parts:
            match said:
                case Problem():
                    raise StepsError(said)
                case Done():
                    break
                case _, body:
                    if (size := size + len(body)) > _MAX_SAID:
                        raise StepsError(_TOO_MUCH)
                    found += outcomes_of(body)
    return found
