"""A set of names that takes little memory, however many and long the names are. Pure.

A small set keeps the names themselves. A large one keeps 128 bits of a keyed hash for each, in a
table with open addressing: 24 to 48 bytes a name. The chance that any two of a million names share
their 128 bits is 10**12 / 2**129, about 1.5e-27. It cannot be provoked: each set has a new key.
"""

import hashlib
import secrets
from array import array

#: Names up to which a plain set is small enough; it is ten times as fast.
_MAX_PLAIN = 65_536
#: Characters of a name. A longer one is kept as a digest.
_MAX_LENGTH = 64
_FIRST_SLOTS = 4 * _MAX_PLAIN
_WORD = 2**64 - 1


class NameSet:
    """A set of names that only grows. The author of the names must not know the `salt`."""

    def __init__(self, salt: str | None = None, *, max_plain: int = _MAX_PLAIN) -> None:
        self._salt = salt or secrets.token_hex(8)
        self._plain: set[str] | None = set()
        self._max_plain = max_plain
        self._count = 0
        self._make(2)

    def __len__(self) -> int:
        return self._count if self._plain is None else len(self._plain)

    def add(self, name: str) -> bool:
        """Add the name; False if it was there already."""
        return self.add_all([name])[0]

    def add_all(self, names: list[str]) -> list[bool]:
        """`add` for many names, in order."""
        if max(map(len, names), default=0) > _MAX_LENGTH:
            names = [_shortened(name) for name in names]
        if self._plain is not None:
            if len(self._plain) + len(names) <= self._max_plain:
                return _add_to_set(self._plain, names)
            known, self._plain = self._plain, None
            self._make(_FIRST_SLOTS)
            self._add_to_table(list(known))
        return self._add_to_table(names)

    def _add_to_table(self, names: list[str]) -> list[bool]:
        # Python's own hash is SipHash: cheap, and as good as random while its key is unknown. The
        # salted name gives 64 more bits. A slot is empty if its first half is 0.
        salt, lows, highs, mask = self._salt, self._lows, self._highs, self._mask
        are_new = []
        for name in names:
            low = hash(name) & _WORD or 1
            high = hash(salt + name) & _WORD
            slot = low & mask
            while (there := lows[slot]) and (there != low or highs[slot] != high):
                slot = (slot + 1) & mask
            are_new.append(not there)
            if there:
                continue
            lows[slot] = low
            highs[slot] = high
            self._count += 1
            if self._count > self._max_count:
                self._grow()
                lows, highs, mask = self._lows, self._highs, self._mask
        return are_new

    def _make(self, slots: int) -> None:
        self._mask = slots - 1
        self._max_count = slots * 2 // 3
        self._lows = array("Q", bytes(8 * slots))
        self._highs = array("Q", bytes(8 * slots))

    def _grow(self) -> None:
        old = zip(self._lows, self._highs, strict=True)
        self._make(2 * len(self._lows))
        lows, highs, mask = self._lows, self._highs, self._mask
        for low, high in old:
            if low:
                slot = low & mask
                while lows[slot]:
                    slot = (slot + 1) & mask
                lows[slot] = low
                highs[slot] = high


def _shortened(name: str) -> str:
    if len(name) <= _MAX_LENGTH:
        return name
    return hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()


def _add_to_set(known: set[str], names: list[str]) -> list[bool]:
    fresh = set(names)
    if len(fresh) == len(names) and known.isdisjoint(fresh):
        known |= fresh
        return [True] * len(names)
    are_new = []
    for name in names:
        are_new.append(name not in known)
        known.add(name)
    return are_new
