"""The words and shapes of OpenAI's API. Does no I/O."""
