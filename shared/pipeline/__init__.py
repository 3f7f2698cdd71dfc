"""Pipelines: batches in stages, the results of one being the input of the next."""
