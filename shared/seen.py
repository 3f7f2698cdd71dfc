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


class Seen:
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
        if len(name) > _LONG:
            name = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()
        if self._few is None:
            return self._add_to_table(name)
        before = len(self._few)
        self._few.add(name)
        if before < self._most_few:
            return len(self._few) > before
        names, self._few = self._few, None
        self._make(_FIRST_SLOTS)
        for known in names:
            self._add_to_table(known)
        return self._count > before

    def add_all(self, names: list[str]) -> list[bool]:
        """`add` for many names, in order; the faster the fewer there are so far."""
        fresh = set(names)
        is_simple = (
            self._few is not None
            and len(self._few) + len(names) <= self._most_few
            and len(fresh) == len(names)
            and self._few.isdisjoint(fresh)
            and max(map(len, fresh), default=0) <= _LONG
        )
        if self._few is None or not is_simple:
            return [self.add(name) for name in names]
        self._few |= fresh
        return [True] * len(names)

    def _add_to_table(self, name: str) -> bool:
        # Python's own hash is SipHash: as good as random under a key, and cheap. Of the salted name
        # it is another 64 bits. A slot whose first half is 0 is empty.
        low = hash(name) & _WORD or 1
        high = hash(self._salt + name) & _WORD
        lows, mask = self._lows, self._mask
        slot = low & mask
        while there := lows[slot]:
            if there == low and self._highs[slot] == high:
                return False
            slot = (slot + 1) & mask
        lows[slot] = low
        self._highs[slot] = high
        self._count += 1
        if self._count > self._most:
            self._grow()
        return True

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
