"""The code inside Ray: engines, lane jobs, waves. The only package that imports ray or vllm."""
