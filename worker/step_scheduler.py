"""vLLM's scheduler, with a limit on what batches add to a step; see `worker/step_limit.py`.

vLLM loads these classes in its core process. `scheduler_cls` is no public interface, and neither is
`_reserve_prefill_lookahead`, which is overridden here: vLLM calls it for each sequence that could
be in the step, with what it has decided on so far.
"""

from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from shared.interpreter import let_threads_take_turns
from worker.core_sequences import take_sequences
from worker.ranks import is_small
from worker.step_limit import StepLimit

if TYPE_CHECKING:
    _Base = Scheduler
else:
    _Base = object


class _Limited(_Base):
    """What both of vLLM's schedulers get."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Threads of the core send what each step has made, and take what comes, while its main
        # thread makes up and launches the next one.
        let_threads_take_turns()
        take_sequences()
        self._limit = StepLimit(is_one_step=self.vllm_config.model_config.runner_type == "pooling")

    def add_request(self, request: Any) -> None:
        request.trace_headers = self._limit.add(
            request.request_id, request.trace_headers, is_small=is_small(request.priority)
        )
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        self._limit.begin()
        return super().schedule(*args, **kwargs)

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        self._limit.end()
        return super().update_from_output(*args, **kwargs)

    def _reserve_prefill_lookahead(
        self, request: Any, num_computed_tokens: int, num_new_tokens: int
    ) -> int:
        if num_computed_tokens >= request.num_tokens - 1:
            # A token of an answer, or so little that it does not count. This is called for each
            # sequence in each step, and vLLM's own method changes nothing here.
            return num_new_tokens if self._limit.answers(request.request_id) else 0
        num_new_tokens = self._limit.take(
            request.request_id,
            num_new_tokens,
            may_split=self._may_split(request),
            goes_first=request.priority < 0,
        )
        return super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        self._limit.leave(request.request_id)
        return super()._free_request(request, *args, **kwargs)

    def _may_split(self, request: Any) -> bool:
        """Whether a step may have any part of its prompt: some end at fixed places only."""
        is_aligned = self.need_mamba_block_aligned_split or request.has_encoder_inputs
        return self.scheduler_config.enable_chunked_prefill and not is_aligned


class StepScheduler(_Limited, Scheduler):
    """For engines that wait for each step before they make up the next one."""


class AsyncStepScheduler(_Limited, AsyncScheduler):
    """For engines that make up a step while the one before it runs."""


def scheduler_name(*, is_async: bool) -> str:
    """The class for `scheduler_cls`, as vLLM finds it."""
    one = AsyncStepScheduler if is_async else StepScheduler
    return f"{one.__module__}.{one.__qualname__}"


def is_ours(name: Any) -> bool:
    """Whether this `scheduler_cls` is one of these classes, whose core takes many sequences."""
    return name in {scheduler_name(is_async=is_async) for is_async in (False, True)}
