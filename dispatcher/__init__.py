"""Decides: validates, cuts slices, orders them per lane, keeps lane jobs running, closes batches."""
