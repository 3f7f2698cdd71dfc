"""`batchyard rebuild`: makes the index in Redis again from what lies in S3."""

from cli.rebuild.command import run

__all__ = ["run"]
