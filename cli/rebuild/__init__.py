"""`batchyard rebuild`: rebuilds the index in Redis from S3."""

from cli.rebuild.command import run

__all__ = ["run"]
