"""A fleet that runs as long as a command in the foreground, whatever ends the command."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from cli.fleet.fleet import Fleet, Options, Report
from cli.servers import sole_user_of
from cli.servers.process import make_private_directory


@contextmanager
def foreground(options: Options, report: Report) -> Iterator[Fleet]:
    """The fleet, not started yet; whatever it starts is stopped at the end.

    Raises SetupError when another command uses the run directory.
    """
    make_private_directory(options.run_dir)
    with sole_user_of(options.run_dir):
        fleet = Fleet(options, report=report)
        try:
            yield fleet
        finally:
            # A second Ctrl-C would leave half of the processes behind.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            fleet.stop()
