"""The `batchyard` command: runs files on a gateway, and runs and administers a fleet."""
