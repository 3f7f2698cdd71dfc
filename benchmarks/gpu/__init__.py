"""What the fleet makes of a card: `python -m benchmarks.gpu`."""
