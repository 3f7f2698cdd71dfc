"""Become another program that dies with its parent: `python bound_to_parent.py PARENT COMMAND …`.

A program of its own instead of a `preexec_fn`: that one makes Python fork the parent, and libraries
in the parent, such as gRPC, then run handlers in the child, of which some never return.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    # The parent may have died before the call above, and then no signal will ever come.
    if os.getppid() != int(parent):
        os._exit(1)
    # Python ignores these, and what it becomes would, too.
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    os.execvp(command[0], command)  # noqa: S606  # there is nothing for a shell to do


if __name__ == "__main__":
    main()
