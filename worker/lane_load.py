"""The claims of a lane job by the way they run, and how many more rows may start. Pure."""

from collections import Counter
from collections.abc import Sequence
from enum import Enum, auto

from shared.slices import Claim

#: Batch, index and epoch: a slice may be claimed again while a wave still has its old claim.
_Key = tuple[str, int, int]


#: A wave that would be over in this part of its time is not worth its start.
_WORTH_PART = 0.25
#: So many are worth one in any case: a claim looks at no more slices.
_MOST_LEAST_ROWS = 10_000
#: Rows with their answers that are read and written at a time.
_MAX_ANSWERED_ROWS = 4000


class Room(Enum):
    """What a slice that runs directly takes its room from."""

    #: What the waves have left of the engine.
    ANY = auto()
    #: Only small batches have it.
    SMALL = auto()
    #: Only batches have it of which little else runs.
    TURN = auto()
    #: It is none of the engine's: all rows were answered before.
    ANSWERED = auto()


class LaneLoad:
    """The claims of a lane job. Slices run directly or in waves."""

    def __init__(
        self,
        *,
        rows_at_once: int,
        rows_ahead: int,
        small_rows: int,
        turn_rows: int,
        direct_rows: int,
        wave_seconds: float,
    ) -> None:
        """The engine computes `rows_at_once` rows, and one path may have `rows_ahead` there.

        `small_rows` rows of small batches start whatever else runs, and so do `turn_rows` rows of
        batches of which little runs; the rest is as in the settings.
        """
        self.rows_at_once = rows_at_once
        self._rows_ahead = rows_ahead
        self._max_small_rows = small_rows
        self._max_turn_rows = turn_rows
        self._max_direct_rows = direct_rows
        self._wave_seconds = wave_seconds
        self._held: dict[_Key, Claim] = {}
        #: How many claims it has had in all.
        self.held_in_all = 0
        self._direct: dict[_Key, tuple[Room, Claim]] = {}
        self._waves: list[list[Claim]] = []
        #: Slices of waves that were put back before their turn came, as far as it is known.
        self._put_back = set[_Key]()

    @property
    def claims(self) -> list[Claim]:
        """Claims that may still be ours: not known to be settled."""
        return list(self._held.values())

    def hold(self, claims: list[Claim]) -> None:
        self.held_in_all += len(claims)
        self._held.update({_key(claim): claim for claim in claims})

    def drop(self, claim: Claim) -> bool:
        """Forget the claim; returns whether it was held."""
        return self._held.pop(_key(claim), None) is not None

    def begin_direct(self, claim: Claim, room: Room = Room.ANY) -> None:
        """Count a slice that runs directly."""
        self._direct[_key(claim)] = room, claim

    def end_direct(self, claim: Claim) -> None:
        del self._direct[_key(claim)]

    def begin_wave(self, claims: list[Claim]) -> None:
        self._waves.append(claims)

    def end_wave(self, claims: list[Claim]) -> None:
        self._waves.remove(claims)
        self._put_back.difference_update(map(_key, claims))

    def waiting_in_waves(self, *, leaving: float = 0.0) -> list[Claim]:
        """Slices of waves that are still starting, as many as may run directly instead.

        The first ones are first. A wave keeps slices with at least this part of its rows.
        """
        rows = self.free_direct_rows()
        found: list[Claim] = []
        for wave in self._waves:
            if self._flowing(wave):
                continue
            waiting = [claim for claim in wave if _key(claim) in self._held]
            may_go = sum(map(_rows, waiting)) - leaving * sum(map(_rows, wave))
            for claim in waiting:
                may_go -= claim.slice.rows
                if may_go < 0:
                    break
                rows -= claim.slice.rows
                if rows < 0:
                    return found
                found.append(claim)
        return found

    def begin_put_back(self, claims: Sequence[Claim]) -> None:
        """Count slices of waves as put back until it is known: the answer may be lost."""
        self._put_back.update(map(_key, claims))

    def end_put_back(self, claims: Sequence[Claim], returned: Sequence[Claim]) -> None:
        """Forget those of the claims that were put back; the wave has begun the others."""
        self._put_back.difference_update(map(_key, claims))
        for claim in returned:
            self.drop(claim)
            self._put_back.add(_key(claim))

    def free_direct_rows(self) -> int:
        """How many more rows may run directly.

        Small slices may always start, and large ones while no wave feeds the engine.
        """
        unused = 2 * self._rows_ahead - sum(map(self._flowing_rows, self._waves))
        return max(self._max_direct_rows, unused) - self._rows(Room.ANY)

    def free_small_rows(self) -> int:
        """How many more rows of small batches may run directly, although others have the room."""
        return self._max_small_rows - self._rows(Room.SMALL)

    def free_turn_rows(self) -> int:
        """How many more rows may run directly of batches that `have_turns` does not name."""
        return self._max_turn_rows - self._rows(Room.TURN)

    def free_answered_rows(self) -> int:
        """How many more rows may be settled that were answered before."""
        return _MAX_ANSWERED_ROWS - self._rows(Room.ANSWERED)

    @property
    def has_answered(self) -> bool:
        """Whether slices are on their way that were answered before."""
        return self._rows(Room.ANSWERED) > 0

    def have_turns(self) -> set[str]:
        """The batches of which so much runs that they take no room from the others.

        Half of the seats is more than the share of any batch that has to share them.
        """
        rows = Counter[str]()
        for _, claim in self._direct.values():
            rows[claim.batch_id] += claim.slice.rows
        flowing = (claim.batch_id for wave in self._waves for claim in self._flowing(wave))
        return {id_ for id_, count in rows.items() if 2 * count >= self.rows_at_once}.union(flowing)

    def lasting_waves(self) -> int:
        """How many waves have more left than is in the engine and its queue.

        Waves that began together end together: neither may wait for the other's end.
        """
        return sum(
            sum(claim.slice.rows for claim in wave if _key(claim) in self._held) > self._rows_ahead
            for wave in self._waves
        )

    def has_starting_wave(self) -> bool:
        """Whether a wave has not settled a slice yet."""
        return any(
            len(own := self._own(wave)) == sum(_key(claim) in self._held for claim in own)
            for wave in self._waves
        )

    def wave_rows(self, rate: float) -> int:
        """How many rows keep the engine busy until the wave after this one has started."""
        return int(max(4 * self.rows_at_once, rate * self._wave_seconds))

    def least_wave_rows(self, rate: float) -> int:
        """How many rows are worth a wave, which takes seconds of several processors to start."""
        worth = min(rate * self._wave_seconds * _WORTH_PART, _MOST_LEAST_ROWS)
        return int(max(self.rows_at_once, worth))

    def _rows(self, room: Room) -> int:
        return sum(claim.slice.rows for its, claim in self._direct.values() if its is room)

    def _flowing_rows(self, wave: list[Claim]) -> int:
        return sum(claim.slice.rows for claim in self._flowing(wave))

    def _flowing(self, wave: list[Claim]) -> list[Claim]:
        """What the wave has left; nothing until it has settled its first slice."""
        own = self._own(wave)
        left = [claim for claim in own if _key(claim) in self._held]
        return left if len(left) < len(own) else []

    def _own(self, wave: list[Claim]) -> list[Claim]:
        """What the wave has claimed and runs itself."""
        return [claim for claim in wave if _key(claim) not in self._put_back]


def _rows(claim: Claim) -> int:
    return claim.slice.rows


def _key(claim: Claim) -> _Key:
    return claim.batch_id, claim.index, claim.epoch
