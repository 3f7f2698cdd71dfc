"""The HTTP door: OpenAI's Files, Batches and Models API. Knows neither Ray nor vLLM."""
