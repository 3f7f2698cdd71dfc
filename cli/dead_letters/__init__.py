"""`batchyard dead-letters`: messages that were refused, and requests that killed engines."""

from cli.dead_letters.command import app

__all__ = ["app"]
