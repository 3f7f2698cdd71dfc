"""`batchyard demo`: the whole fleet, two batches of support tickets, and their results."""

from cli.demo.tour import run, run_here

__all__ = ["run", "run_here"]
