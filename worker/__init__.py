"""The code inside Ray: engines, lane jobs and their waves. The only room that imports ray or vllm."""
