from worker.fork_server import inherited


def test_a_fork_inherits_nothing_of_rays() -> None:
    environment = {"RAY_AUTH_TOKEN": "secret", "RAY_ADDRESS": "auto", "VLLM_CPU_KVCACHE_SPACE": "1"}

    assert inherited(environment) == {"VLLM_CPU_KVCACHE_SPACE": "1"}
