"""The claims of a lane job by the way they run, and how many more rows may start. Pure."""

from shared.slices import Claim
from worker.engine_sizes import rows_ahead

#: Batch, index and epoch: a slice may be claimed again while a wave still has its old claim.
_Key = tuple[str, int, int]


class LaneLoad:
    """The claims of a lane job. Slices run directly or in waves."""

    def __init__(
        self, *, rows_at_once: int, small_rows: int, direct_rows: int, wave_seconds: float
    ) -> None:
        """The engine computes `rows_at_once` rows.

        `small_rows` rows of small batches start whatever else runs; the rest is as in the settings.
        """
        self.rows_at_once = rows_at_once
        self._max_small_rows = small_rows
        self._max_direct_rows = direct_rows
        self._wave_seconds = wave_seconds
        self._held: dict[_Key, Claim] = {}
        self._direct_rows = 0
        self._small: dict[_Key, int] = {}
        self._waves: list[list[Claim]] = []

    @property
    def claims(self) -> list[Claim]:
        """Claims that may still be ours: not known to be settled."""
        return list(self._held.values())

    def hold(self, claims: list[Claim]) -> None:
        self._held.update({_key(claim): claim for claim in claims})

    def drop(self, claim: Claim) -> bool:
        """Forget the claim; returns whether it was held."""
        return self._held.pop(_key(claim), None) is not None

    def begin_direct(self, claim: Claim, *, is_small: bool = False) -> None:
        """Count a slice that runs directly; `is_small` if it takes the room of small batches."""
        if is_small:
            self._small[_key(claim)] = claim.slice.rows
        else:
            self._direct_rows += claim.slice.rows

    def end_direct(self, claim: Claim) -> None:
        if self._small.pop(_key(claim), None) is None:
            self._direct_rows -= claim.slice.rows

    def begin_wave(self, claims: list[Claim]) -> None:
        self._waves.append(claims)

    def end_wave(self, claims: list[Claim]) -> None:
        self._waves.remove(claims)

    def free_direct_rows(self) -> int:
        """How many more rows may run directly.

        Small slices may always start, and large ones while no wave feeds the engine.
        """
        unused = 2 * self.rows_in_engine() - sum(map(self._flowing_rows, self._waves))
        return max(self._max_direct_rows, unused) - self._direct_rows

    def free_small_rows(self) -> int:
        """How many more rows of small batches may run directly, although others have the room."""
        return self._max_small_rows - sum(self._small.values())

    def wave_rows(self, rate: float) -> int:
        """How many rows keep the engine busy until the wave after this one has started."""
        return int(max(4 * self.rows_at_once, rate * self._wave_seconds))

    def rows_in_engine(self) -> int:
        """How many rows one path may have in the engine and its queue."""
        return rows_ahead(self.rows_at_once)

    def _flowing_rows(self, wave: list[Claim]) -> int:
        """The rows that the wave has left, or 0 until it has settled its first slice."""
        left = [claim for claim in wave if _key(claim) in self._held]
        return sum(claim.slice.rows for claim in left) if len(left) < len(wave) else 0


def _key(claim: Claim) -> _Key:
    return claim.batch_id, claim.index, claim.epoch
