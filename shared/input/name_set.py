"""Which names have been seen before, in bounded memory whatever their number and length. Pure.

Few names are kept as they are. Of many, each is kept as 128 bits of keyed hash in a table with open
addressing: 24 to 48 bytes a name. Two names out of a million have the same 128 bits with a
probability of 10**12 / 2**129, about 1.5e-27; and nobody can aim at what is keyed anew each time.
"""

import hashlib
import secrets
from array import array

#: Up to here a set is as small as it has to be, and ten times as fast.
_FEW = 65_536
#: Characters; of a longer name a set keeps a digest.
_LONG = 64
_FIRST_SLOTS = 4 * _FEW
_WORD = 2**64 - 1


class NameSet:
    """A set of names that only grows; `salt` is to be unknown to whoever chooses the names."""

    def __init__(self, salt: str | None = None, *, few: int = _FEW) -> None:
        self._salt = salt or secrets.token_hex(8)
        self._few: set[str] | None = set()
        self._most_few = few
        self._count = 0
        self._make(2)

    def __len__(self) -> int:
        return self._count if self._few is None else len(self._few)

    def add(self, name: str) -> bool:
        """Remember the name; False if it was known."""
        return self.add_all([name])[0]

    def add_all(self, names: list[str]) -> list[bool]:
        """`add` for many names, in order; the faster the fewer there are so far."""
        if max(map(len, names), default=0) > _LONG:
            names = [_shortened(name) for name in names]
        if self._few is not None:
            if len(self._few) + len(names) <= self._most_few:
                return _add_to_set(self._few, names)
            known, self._few = self._few, None
            self._make(_FIRST_SLOTS)
            self._add_to_table(list(known))
        return self._add_to_table(names)

    def _add_to_table(self, names: list[str]) -> list[bool]:
        # Python's own hash is SipHash: as good as random under a key, and cheap. Of the salted name
        # it is another 64 bits. A slot whose first half is 0 is empty.
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
            if self._count > self._most:
                self._grow()
                lows, highs, mask = self._lows, self._highs, self._mask
        return are_new

    def _make(self, slots: int) -> None:
        self._mask = slots - 1
        self._most = slots * 2 // 3
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
    if len(name) <= _LONG:
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
