"""The fleet on one machine: everything that `batchyard up` starts, watches and stops."""

from cli.fleet.fleet import Fleet, Options
from cli.fleet.foreground import foreground
from cli.fleet.servers import OwnServers

__all__ = ["Fleet", "Options", "OwnServers", "foreground"]
