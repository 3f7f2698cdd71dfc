"""Traces of batches, by OpenTelemetry. Off unless the environment names a collector."""
