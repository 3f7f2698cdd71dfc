"""What operators see of a process: log lines, metrics, readiness."""
