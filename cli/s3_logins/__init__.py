"""`batchyard s3-logins`: S3 logins of tenants, each with rights to its own objects only."""

from cli.s3_logins.command import app

__all__ = ["app"]
