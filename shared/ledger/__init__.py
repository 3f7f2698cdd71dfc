"""What S3 keeps for ever, and Redis can be made again from."""
