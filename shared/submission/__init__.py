"""How a batch comes into being, the same through every door."""
