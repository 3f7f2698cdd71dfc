"""The HTTP door: OpenAI's Files and Batches API. Runs no inference; imports neither Ray nor vLLM."""
