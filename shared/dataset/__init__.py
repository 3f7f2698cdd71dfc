"""Datasets: tables and folders in S3 whose rows become the requests of a batch."""
