"""The commands of users: they speak to a gateway over HTTP, and need nothing else of a fleet."""
