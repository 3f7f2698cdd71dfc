"""The `batchyard` command: the fleet on one machine, and both doors from a terminal."""
