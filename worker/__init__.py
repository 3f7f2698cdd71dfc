"""The code inside Ray: engines, lane jobs, waves. The only room that imports ray or vllm."""
