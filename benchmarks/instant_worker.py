"""A worker of vLLM's core that answers at once, so that only what stands before it is measured.

Schedules, decodes and serves as ever; nothing is computed, and every answer is the same.
"""

from typing import Any

import torch
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.cpu_worker import CPUWorker

#: A token that is an ordinary word in every vocabulary of the benchmarks.
_TOKEN = 100


class InstantWorker(CPUWorker):
    """Named in the catalog as `worker_cls`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        #: Tokens of the prompt, by the id of each sequence that runs.
        self._prompts: dict[str, int] = {}
        self._next: ModelRunnerOutput | None = None

    def execute_model(self, scheduler_output: Any) -> Any:
        """Note a step; a model that gives vectors has its result at once."""
        for id_ in scheduler_output.finished_req_ids:
            self._prompts.pop(id_, None)
        computed = {}
        for new in scheduler_output.scheduled_new_reqs:
            self._prompts[new.req_id] = len(new.prompt_token_ids)
            computed[new.req_id] = new.num_computed_tokens
        cached = scheduler_output.scheduled_cached_reqs
        computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        ids = list(scheduler_output.num_scheduled_tokens)
        ends = [
            computed[id_] + scheduler_output.num_scheduled_tokens[id_] >= self._prompts[id_]
            for id_ in ids
        ]
        output = ModelRunnerOutput(ids, {id_: at for at, id_ in enumerate(ids)})
        if self.model_config.runner_type == "pooling":
            size = self.model_config.get_hidden_size()
            output.pooler_output = [torch.rand(size) if end else None for end in ends]
            return output
        output.sampled_token_ids = [[_TOKEN] if end else [] for end in ends]
        self._next = output if ids else None
        return None if ids else output

    def sample_tokens(self, grammar_output: Any) -> Any:
        """The tokens of the step."""
        del grammar_output
        output, self._next = self._next, None
        return output
