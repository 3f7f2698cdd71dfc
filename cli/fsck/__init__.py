"""`batchyard fsck`: compares S3 and Redis, object by object."""

from cli.fsck.command import run

__all__ = ["run"]
