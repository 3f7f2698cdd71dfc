"""The HTTP API: OpenAI's Files, Batches and Models API. Knows neither Ray nor vLLM."""
