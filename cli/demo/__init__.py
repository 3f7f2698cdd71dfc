"""`batchyard demo`: the whole fleet, two batches of support tickets, and what comes back."""

from cli.demo.tour import run

__all__ = ["run"]
