"""Calls that look live, collected into batches."""
