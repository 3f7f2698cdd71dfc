"""Variables as lines of a file that a POSIX shell can source. Does no I/O."""

import shlex
from collections.abc import Mapping


def assignments(variables: Mapping[str, str]) -> str:
    """One line `NAME=value` each; values that a shell would split or expand are quoted."""
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items())
