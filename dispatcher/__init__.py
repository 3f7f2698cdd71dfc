"""Decides: validates, cuts slices, orders them, keeps lane jobs running, closes batches."""
