"""Which keys the path of an `s3://` URL with `*`, `**` and `?` stands for. Pure.

Not a regular expression: one with many stars takes years for some keys, and nothing could end it.
"""

import re
from collections import defaultdict
from collections.abc import Sequence

_WILD = re.compile(r"(\*\*/?|\*|\?)")


def key_pattern(path: str) -> Sequence[str]:
    """The path in pieces, each of them wild or plain; a folder stands for all that is in it."""
    return [one for one in _WILD.split(f"{path}**" if path.endswith("/") else path) if one]


def fits(key: str, pattern: Sequence[str]) -> bool:
    """Whether the key is one of the pattern's. Takes about as long as both are."""
    where = defaultdict[str, int](int)
    for place, sign in enumerate(key):
        where[sign] |= 1 << place
    every, slashes = (1 << len(key)) - 1, where["/"]
    names = every & ~slashes
    #: A bit for each place of the key where the pieces so far may end.
    ends = 1
    for piece in pattern:
        match piece:
            case "**/":
                begun = ends
                # Whole folders, one more each time, none of them without a name.
                while begun := (_spread(begun & names, names) & slashes) << 1 & ~ends:
                    ends |= begun
            case "**":
                ends = -(ends & -ends) & (every << 1 | 1)
            case "*":
                ends |= _spread(ends & names, names)
            case "?":
                ends = (ends & names) << 1
            case _:
                for sign in piece:
                    ends = (ends & where[sign]) << 1
    return bool(ends >> len(key))


def _spread(places: int, names: int) -> int:
    """The places behind these, each up to the end of its name: there the carry of a sum stops."""
    return (names + places) ^ names
