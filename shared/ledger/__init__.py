"""The durable records in S3, from which Redis can be rebuilt."""
