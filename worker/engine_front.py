"""What vLLM's front does for each token and each row that nobody needs, switched off."""

from typing import Any


def stop_statistics(client: Any) -> None:
    """Let a started `AsyncLLM` keep no statistics and no Prometheus metrics of its own.

    Nobody reads them. `disable_log_stats` would also take the scheduler's statistics, which the
    seats depend on, from vLLM's core.
    """
    client.log_stats = client.output_processor.log_stats = False
    client.logger_manager = None
    if client.output_handler is not None:
        # The task that takes the core's outputs has read these already.
        client.output_handler.cancel()
        client.output_handler = None
    client._run_output_handler()  # noqa: SLF001  # it has no public name


def keep_environment() -> None:
    """Read vLLM's environment variables once: every row reads some of them anew."""
    from vllm import envs

    envs.enable_envs_cache()
