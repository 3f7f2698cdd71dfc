"""What vLLM's front in a replica does for each token that nobody needs, switched off."""

from typing import Any


def lighten(client: Any) -> None:
    """Save the time of a started `AsyncLLM` that has no effect on answers.

    Neither has a switch of its own: `disable_log_stats` would also take the scheduler's statistics,
    which the seats depend on.
    """
    from vllm import envs

    # Every row reads some of vLLM's environment variables anew, and they do not change any more.
    envs.enable_envs_cache()
    _skip_token_statistics(client.output_processor)


def _skip_token_statistics(processor: Any) -> None:
    """Keep no times of single tokens and requests; the scheduler's statistics stay."""
    process = processor.process_outputs

    def process_outputs(outputs: Any, timestamp: Any = None, _: Any = None) -> Any:
        return process(outputs, timestamp, None)

    processor.process_outputs = process_outputs
