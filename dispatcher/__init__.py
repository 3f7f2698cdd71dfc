"""The dispatcher: validates, slices and orders batches, keeps lane jobs running, ends batches."""
