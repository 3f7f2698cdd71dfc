"""Creating batches, the same way over HTTP and over the bus."""
