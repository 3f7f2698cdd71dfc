import dataclasses

from shared.slices import Claim, Slice
from worker.lane_load import LaneLoad, Room


def _claim(index: int, rows: int, batch_id: str = "batch_1") -> Claim:
    return Claim(
        lane="m@gpu",
        batch_id=batch_id,
        index=index,
        epoch=1,
        strikes=0,
        slice=Slice(0, 100, 0, rows, 10),
        bucket="b",
        key="k",
        etag="e",
        endpoint="/v1/chat/completions",
        tenant="acme",
    )


def _load(*, rows_at_once: int = 256, direct_rows: int = 64) -> LaneLoad:
    return LaneLoad(
        rows_at_once=rows_at_once,
        rows_ahead=2 * rows_at_once,
        small_rows=16,
        turn_rows=500,
        direct_rows=direct_rows,
        wave_seconds=30,
    )


def test_without_a_wave_slices_run_directly_until_four_engines_are_full() -> None:
    load = _load()
    assert load.free_direct_rows() == 4 * 256

    load.begin_direct(_claim(0, 1000))
    assert load.free_direct_rows() == 24

    load.end_direct(_claim(0, 1000))
    assert load.free_direct_rows() == 1024


def test_a_wave_that_starts_takes_no_room_from_slices_that_run_directly() -> None:
    load = _load()
    wave = [_claim(index, 600) for index in range(3)]
    load.hold(wave)

    load.begin_wave(wave)

    assert load.free_direct_rows() == 1024


def test_beside_a_wave_that_flows_only_small_slices_run_directly() -> None:
    load = _load()
    wave = [_claim(index, 600) for index in range(3)]
    load.hold(wave)
    load.begin_wave(wave)

    load.drop(wave[0])
    assert load.free_direct_rows() == 64

    load.drop(wave[1])
    assert load.free_direct_rows() == 1024 - 600

    load.end_wave(wave)
    assert load.free_direct_rows() == 1024


def test_small_batches_have_room_that_nothing_else_takes() -> None:
    load = _load()
    load.begin_direct(_claim(0, 2000))

    load.begin_direct(_claim(1, 5), Room.SMALL)

    assert load.free_small_rows() == 16 - 5
    assert load.free_direct_rows() == 1024 - 2000

    load.end_direct(_claim(1, 5))
    assert load.free_small_rows() == 16
    assert load.free_direct_rows() == 1024 - 2000


def test_a_batch_has_its_turn_when_it_fills_half_of_the_seats() -> None:
    load = _load()
    load.begin_direct(_claim(0, 127), Room.TURN)
    assert load.have_turns() == set()

    load.begin_direct(_claim(1, 1))

    assert load.have_turns() == {"batch_1"}
    assert load.free_turn_rows() == 500 - 127
    load.end_direct(_claim(0, 127))
    assert load.have_turns() == set()
    assert load.free_turn_rows() == 500


def test_a_batch_has_its_turn_in_a_wave_from_the_first_slice_that_it_settles() -> None:
    load = _load()
    wave = [_claim(0, 5, "batch_1"), _claim(0, 5, "batch_2"), _claim(1, 5, "batch_2")]
    load.hold(wave)
    load.begin_wave(wave)
    assert load.have_turns() == set()

    load.drop(wave[1])
    assert load.have_turns() == {"batch_1", "batch_2"}

    load.drop(wave[2])
    assert load.have_turns() == {"batch_1"}


def test_what_waits_for_a_wave_to_start_may_run_directly_the_first_slices_first() -> None:
    load = _load(rows_at_once=16)
    wave = [_claim(index, 30) for index in range(4)]
    load.hold(wave)
    load.begin_wave(wave)
    assert load.free_direct_rows() == 64

    assert load.waiting_in_waves() == wave[:2]
    load.begin_put_back(wave[:1])
    load.end_put_back(wave[:1], wave[:1])
    assert load.waiting_in_waves() == wave[1:3]
    assert wave[0] not in load.claims


def test_a_wave_that_starts_keeps_a_part_of_its_rows_while_there_are_others() -> None:
    load = _load()
    wave = [_claim(index, 30) for index in range(4)]
    load.hold(wave)
    load.begin_wave(wave)

    assert load.waiting_in_waves(leaving=0.5) == wave[:2]
    load.begin_put_back(wave[:2])
    load.end_put_back(wave[:2], wave[:2])

    assert load.waiting_in_waves(leaving=0.5) == []
    assert load.waiting_in_waves() == wave[2:]


def test_a_wave_that_has_begun_keeps_its_slices() -> None:
    load = _load(rows_at_once=16)
    wave = [_claim(index, 30) for index in range(4)]
    load.hold(wave)
    load.begin_wave(wave)
    load.begin_put_back(wave[2:])
    load.end_put_back(wave[2:], wave[3:])

    load.drop(wave[2])

    assert load.waiting_in_waves() == []


def test_a_wave_has_not_begun_because_nobody_said_that_its_slices_were_put_back() -> None:
    load = _load(rows_at_once=16)
    wave = [_claim(index, 30) for index in range(4)]
    load.hold(wave)
    load.begin_wave(wave)

    load.begin_put_back(load.waiting_in_waves())
    # They are found lost when the claims are renewed.
    load.drop(wave[0])
    load.drop(wave[1])

    assert load.waiting_in_waves() == [wave[2], wave[3]]
    assert load.free_direct_rows() == 64


def test_waves_that_are_almost_done_let_the_next_ones_start() -> None:
    load = _load()
    waves = [[_claim(index, 256, batch) for index in range(4)] for batch in ("batch_1", "batch_2")]
    for wave in waves:
        load.hold(wave)
        load.begin_wave(wave)
    assert load.lasting_waves() == 2

    for wave in waves:
        load.drop(wave[0])
    assert load.lasting_waves() == 2
    load.drop(waves[0][1])
    assert load.lasting_waves() == 1


def test_a_wave_starts_until_it_has_settled_a_slice_that_was_not_put_back() -> None:
    load = _load(rows_at_once=16)
    wave = [_claim(index, 30) for index in range(4)]
    assert not load.has_starting_wave()

    load.hold(wave)
    load.begin_wave(wave)
    assert load.has_starting_wave()
    load.begin_put_back(wave[3:])
    load.end_put_back(wave[3:], wave[3:])
    assert load.has_starting_wave()

    load.drop(wave[0])
    assert not load.has_starting_wave()
    load.end_wave(wave)
    assert not load.has_starting_wave()


def test_a_wave_of_which_all_was_put_back_starts_until_it_ends() -> None:
    load = _load(rows_at_once=16)
    wave = [_claim(0, 30)]
    load.hold(wave)
    load.begin_wave(wave)
    load.begin_put_back(wave)
    load.end_put_back(wave, wave)
    assert load.has_starting_wave()

    load.end_wave(wave)
    assert not load.has_starting_wave()


def test_a_wave_fills_its_time_and_never_less_than_four_engines() -> None:
    load = _load(rows_at_once=100)

    assert load.wave_rows(1000) == 30_000
    assert load.wave_rows(0) == 400


def test_a_wave_is_not_started_for_what_would_be_done_soon() -> None:
    load = _load(rows_at_once=100)

    assert load.least_wave_rows(0) == 100
    assert load.least_wave_rows(1000) == 7_500


def test_a_claim_is_held_until_it_is_dropped_once() -> None:
    load = _load()
    first, second = _claim(0, 5), _claim(1, 5)
    load.hold([first, second])

    assert load.drop(first)
    assert not load.drop(first)
    assert load.claims == [second]


def test_a_slice_that_is_claimed_again_is_held_until_its_new_claim_is_dropped() -> None:
    load = _load()
    old = _claim(0, 10)
    new = dataclasses.replace(old, epoch=2)
    load.hold([old])
    load.hold([new])

    assert load.drop(old)
    assert load.claims == [new]
