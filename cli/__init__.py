"""The `batchyard` command: runs the fleet on one machine, and administers it from a terminal."""
