import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine_seats import (
    CROWD_TOKENS,
    LEAST_PROMPT_TOKENS,
    QUIET_PROMPT_TOKENS,
    STEPS_OF_PROMPTS,
    STEPS_OF_VECTORS,
    Capacity,
    Seats,
    Sequence,
    StepOutput,
)

SEATS, SPARE, KV_TOKENS = 8, 2, 1000
CAPACITY = Capacity(SEATS, SPARE, spare_kv=0.1, kv_tokens=KV_TOKENS)


def sequence(
    id_: str, *, rank: int = 1, is_spare: bool = False, prompt: int = 10, output: float = 10
) -> Sequence:
    return Sequence(id_, rank, is_spare, prompt, output)


def seated(seats: Seats) -> list[str]:
    return [one.id for one in seats.give()]


def a_full_engine() -> Seats:
    """All seats are taken, and more sequences wait."""
    seats = Seats(CAPACITY)
    for number in range(2 * SEATS):
        seats.ask(sequence(f"{number}", rank=number))
    assert seated(seats) == [f"{number}" for number in range(SEATS)]
    return seats


def test_a_sequence_that_ends_leaves_its_seat_to_the_one_of_the_lowest_rank() -> None:
    seats = a_full_engine()
    seats.ask(sequence("first", rank=-1))

    seats.note(0.2, [StepOutput("3", 1, is_last=True), StepOutput("4", 1, is_last=False)])

    assert seated(seats) == ["first"]
    assert seats.in_use == SEATS


def test_rows_leave_the_part_of_the_cache_free_that_live_calls_need() -> None:
    seats = Seats(CAPACITY)
    seats.yield_to_live(limit=SEATS, reserve=0, kv_reserve=500)
    for number in range(3):
        seats.ask(sequence(f"{number}", rank=number, prompt=150, output=100))
    # 900 of 1000 tokens are for rows, and 500 of these are left to live calls.
    assert seated(seats) == ["0"]

    seats.yield_to_live(limit=SEATS, reserve=0, kv_reserve=0)
    assert seated(seats) == ["1", "2"]


def test_a_row_that_needs_what_is_left_to_live_calls_runs_when_it_is_the_only_one() -> None:
    seats = Seats(CAPACITY._replace(live_seats=1))
    seats.yield_to_live(limit=SEATS, reserve=0, kv_reserve=500)
    seats.ask(a_live_call("live"))
    seats.ask(sequence("large", prompt=500, output=100))

    assert seated(seats) == ["live", "large"]


def a_live_call(id_: str, rank: int = -10) -> Sequence:
    return Sequence(id_, rank, is_spare=False, prompt_tokens=10, output_tokens=10, is_live=True)


def test_live_calls_have_seats_that_no_row_of_a_batch_gets() -> None:
    seats = Seats(CAPACITY._replace(live_seats=2))
    for number in range(2 * SEATS):
        seats.ask(sequence(f"{number}", rank=number))
    for number in range(SPARE):
        seats.ask(sequence(f"spare-{number}", is_spare=True))
    assert len(seated(seats)) == SEATS + SPARE

    for number in range(3):
        seats.ask(a_live_call(f"live-{number}"))

    assert seated(seats) == ["live-0", "live-1"]
    # The next seat that is free is a live call's, whoever had it.
    seats.leave("0")
    assert seated(seats) == ["live-2"]
    # Of three that leave, one leaves its seat to a row.
    for number in range(3):
        seats.leave(f"live-{number}")
    assert len(seated(seats)) == 1


def test_while_a_live_call_runs_few_prompts_of_batches_begin_at_a_time() -> None:
    seats = Seats(Capacity(SEATS, 0, spare_kv=0, step_tokens=8192, live_seats=1))
    seats.ask(a_live_call("live"))
    for number in range(3):
        seats.ask(sequence(f"{number}", rank=number, prompt=QUIET_PROMPT_TOKENS // 2))

    assert seated(seats) == ["live", "0"]


def test_few_prompts_begin_at_a_time_before_the_live_call_that_is_expected() -> None:
    seats = Seats(Capacity(SEATS, 0, spare_kv=0, step_tokens=8192, live_seats=1))
    seats.yield_to_live(limit=SEATS, reserve=0, is_live_near=True)
    for number in range(4):
        seats.ask(sequence(f"{number}", rank=number, prompt=QUIET_PROMPT_TOKENS // 2))

    assert seated(seats) == ["0", "1"]
    seats.yield_to_live(limit=SEATS, reserve=0)
    assert seated(seats) == ["2", "3"]


def test_spare_seats_are_for_those_who_may_have_them() -> None:
    seats = a_full_engine()
    for number in range(SPARE + 1):
        seats.ask(sequence(f"spare-{number}", is_spare=True))

    assert seated(seats) == [f"spare-{number}" for number in range(SPARE)]
    # One that ends makes no room for another, as long as the engine has no seat beyond.
    seats.leave("0")
    assert seated(seats) == [f"spare-{SPARE}"]
    seats.leave("spare-0")
    assert seated(seats) == ["8"]


def note_a_small_batch(seats: Seats) -> None:
    """One that has come and gone."""
    seats.ask(sequence("soon over", is_spare=True))
    assert seated(seats) == ["soon over"]
    seats.leave("soon over")


def a_full_engine_of_long_rows(
    *,
    answer: int = 32,
    longer: int = 0,
    has_small_batches: bool = True,
    step_tokens: int = 8192,
) -> Seats:
    """All seats are taken, and more rows wait.

    Of the last rows' answers, each had so many tokens, every second one `longer` more, and the
    others as much less.
    """
    seats = Seats(Capacity(4 * SEATS, SPARE, spare_kv=0, step_tokens=step_tokens))
    if has_small_batches:
        note_a_small_batch(seats)
    for number in range(100):
        seats.ask(sequence(f"{number}", rank=number, output=answer))
        if number < SEATS:
            assert len(seated(seats)) == 1
            tokens = answer + (longer if number % 2 else -longer)
            seats.note(None, [StepOutput(f"{number}", tokens, is_last=True)])
    inside = 0
    while begun := seated(seats):
        seats.note(None, [StepOutput(id_, 1, is_last=False) for id_ in begun])
        inside += len(begun)
    assert inside == 4 * SEATS
    return seats


def test_the_rows_of_several_steps_begin_together() -> None:
    # Of 32 rows with 32 tokens, one leaves in a step. Every fourth step has prompts.
    seats = a_full_engine_of_long_rows()
    for number in range(SEATS, SEATS + 3):
        seats.leave(f"{number}")
        assert seated(seats) == []

    seats.leave(f"{SEATS + 3}")

    assert len(seated(seats)) == 4


@pytest.mark.parametrize(("is_spare", "rows"), [(False, 4), (True, 4 + SPARE)])
def test_rows_of_many_small_batches_begin_together_too(is_spare: bool, rows: int) -> None:
    seats = a_full_engine_of_long_rows()
    for number in range(10):
        seats.ask(sequence(f"small-{number}", rank=-10 + number, is_spare=is_spare))
    assert seated(seats) == []
    for number in range(SEATS, SEATS + 3):
        seats.leave(f"{number}")
        assert seated(seats) == []

    seats.leave(f"{SEATS + 3}")

    together = list(seats.give())
    assert len(together) == rows
    assert all(map(seats.begins_together, together))


@pytest.mark.parametrize(("longer", "rows"), [(0, 7), (1, 7), (12, 4)])
def test_rows_of_one_length_that_have_the_engine_alone_begin_in_larger_groups(
    longer: int, rows: int
) -> None:
    seats = a_full_engine_of_long_rows(longer=longer, has_small_batches=False)
    for number in range(SEATS, SEATS + rows - 1):
        seats.leave(f"{number}")
        assert seated(seats) == []

    seats.leave(f"{SEATS + rows - 1}")

    assert len(seated(seats)) == rows


def test_rows_of_one_length_that_almost_fill_a_step_wait_for_no_others() -> None:
    prompts_of_six_rows = 60
    seats = a_full_engine_of_long_rows(
        has_small_batches=False, step_tokens=4 * SEATS + prompts_of_six_rows
    )
    for number in range(SEATS, SEATS + 4):
        seats.leave(f"{number}")
        assert seated(seats) == []

    seats.leave(f"{SEATS + 4}")

    assert len(seated(seats)) == 5


def test_where_answers_are_short_each_row_begins_at_once() -> None:
    seats = a_full_engine_of_long_rows(answer=8)

    seats.leave(f"{SEATS}")

    assert len(seated(seats)) == 1


def test_rows_of_small_batches_and_those_beside_live_calls_wait_for_no_others() -> None:
    seats = a_full_engine_of_long_rows()
    seats.ask(sequence("small", rank=-1))
    seats.leave(f"{SEATS}")
    assert seated(seats) == ["small"]

    seats.leave(f"{SEATS + 1}")
    seats.yield_to_live(limit=4 * SEATS, reserve=0, is_live_near=True)
    assert len(seated(seats)) == 1


def test_rows_do_not_wait_for_those_of_small_batches_to_leave() -> None:
    seats = Seats(CAPACITY._replace(seats=4 * SEATS))
    for number in range(SEATS):
        seats.ask(sequence(f"{number}"))
        assert len(seated(seats)) == 1
        seats.note(0.0, [StepOutput(f"{number}", 32, is_last=True)])
    for number in range(SPARE):
        seats.ask(sequence(f"spare-{number}", is_spare=True, prompt=400))
    assert len(seated(seats)) == SPARE
    seats.note(0.8, [StepOutput(f"spare-{number}", 1, is_last=False) for number in range(SPARE)])
    seats.ask(sequence("next", prompt=200))
    assert seated(seats) == []

    # What the prompts of the small batches share counts once.
    seats.note(0.4, [])

    assert seated(seats) == ["next"]


def test_the_last_rows_of_an_engine_do_not_wait_for_ever() -> None:
    seats = a_full_engine_of_long_rows()
    inside = [str(number) for number in range(SEATS, 5 * SEATS)]
    while inside:
        seats.leave(inside.pop(0))
        inside += seated(seats)

    assert seats.in_use == 0
    seats.ask(sequence("next"))
    assert seated(seats) == ["next"]


def an_engine_of_short_rows(*, max_tokens: int = 3) -> Seats:
    """All seats are taken, and more sequences wait; none has more tokens than these."""
    seats = Seats(CAPACITY)
    for number in range(3 * SEATS):
        seats.ask(sequence(f"{number}", rank=number, output=3)._replace(max_tokens=max_tokens))
    return seats


def test_the_seat_of_one_that_may_have_two_tokens_more_is_given_away_already() -> None:
    seats = an_engine_of_short_rows(max_tokens=4)
    assert len(seated(seats)) == SEATS

    seats.note(0.1, [StepOutput("0", 1, is_last=False)])
    assert seated(seats) == []
    seats.note(0.1, [StepOutput("0", 1, is_last=False)])
    assert seated(seats) == [f"{SEATS}"]

    # It was given away once.
    seats.note(0.1, [StepOutput("0", 1, is_last=False)])
    seats.note(0.1, [StepOutput("0", 1, is_last=True)])
    assert seated(seats) == []
    assert seats.in_use == SEATS


def test_no_more_than_half_of_the_seats_are_given_away_early() -> None:
    seats = an_engine_of_short_rows(max_tokens=1)

    assert len(seated(seats)) == SEATS + SEATS // 2


def test_beside_live_calls_no_seat_is_given_away_before_it_is_free() -> None:
    seats = an_engine_of_short_rows(max_tokens=1)
    seats.yield_to_live(limit=SEATS, reserve=0, is_live_near=True)

    assert len(seated(seats)) == SEATS


def test_one_that_gives_up_while_it_waits_has_no_seat() -> None:
    seats = a_full_engine()
    seats.leave("8")

    seats.leave("0")

    assert seated(seats) == ["9"]


def test_no_more_have_a_seat_than_the_cache_holds_to_the_end() -> None:
    seats = Seats(CAPACITY)
    for number in range(4):
        seats.ask(sequence(f"{number}", rank=number, prompt=100, output=300))

    # Of 900 tokens that are for all.
    assert seated(seats) == ["0", "1"]

    # The answer of one was shorter than expected.
    seats.note(0.101, [StepOutput("0", 1, is_last=True), StepOutput("1", 1, is_last=False)])
    assert seated(seats) == ["2"]


def test_an_answer_that_is_longer_than_expected_is_expected_to_go_on() -> None:
    seats = Seats(CAPACITY)
    seats.ask(sequence("long", prompt=100, output=400))
    assert seated(seats) == ["long"]
    # 400 of 900 tokens are left.
    seats.note(0.5, [StepOutput("long", 400, is_last=False)])
    seats.ask(sequence("next", rank=1, prompt=100, output=250))

    assert seated(seats) == []
    seats.leave("long")
    assert seated(seats) == ["next"]


def test_what_the_prompts_share_counts_once_as_soon_as_vllm_says_so() -> None:
    seats = Seats(CAPACITY)
    for number in range(8):
        seats.ask(sequence(f"{number}", rank=number, prompt=400, output=10))
    assert seated(seats) == ["0", "1"]

    seats.note(0.402, [StepOutput("0", 1, is_last=False), StepOutput("1", 1, is_last=False)])

    assert seated(seats) == ["2"]


def test_small_batches_may_have_what_is_kept_of_the_cache() -> None:
    seats = Seats(CAPACITY)
    seats.ask(sequence("large", prompt=880))
    assert seated(seats) == ["large"]
    seats.ask(sequence("next", prompt=50))
    seats.ask(sequence("small", prompt=50, is_spare=True))

    assert seated(seats) == ["small"]


def test_few_prompts_begin_at_a_time_while_a_small_batch_runs() -> None:
    seats = Seats(CAPACITY._replace(kv_tokens=0))
    half = QUIET_PROMPT_TOKENS // 2
    seats.ask(sequence("small", is_spare=True, prompt=0))
    assert seated(seats) == ["small"]
    for number in range(4):
        seats.ask(sequence(f"{number}", rank=number, prompt=half))

    assert seated(seats) == ["0", "1"]
    seats.note(None, [StepOutput("0", 1, is_last=False)])
    assert seated(seats) == ["2"]
    seats.leave("small")
    assert seated(seats) == ["3"]


@pytest.mark.parametrize("is_one_step", [False, True])
def test_a_crowd_begins_step_by_step(is_one_step: bool) -> None:
    seats = Seats(CAPACITY._replace(kv_tokens=0, step_tokens=100, is_one_step=is_one_step))
    steps = STEPS_OF_VECTORS if is_one_step else STEPS_OF_PROMPTS
    for number in range(5):
        seats.ask(sequence(f"{number}", rank=number, prompt=100))

    assert seated(seats) == [f"{number}" for number in range(steps)]
    seats.note(None, [StepOutput("0", 1, is_last=is_one_step)])
    assert seated(seats) == [f"{steps}"]


_SEATS = 256


def an_engine_after_rows(*, prompt: int, answer: int) -> Seats:
    """It has run a row for each of its seats, and has none now."""
    seats = Seats(Capacity(_SEATS, SPARE, spare_kv=0, step_tokens=8192))
    note_a_small_batch(seats)
    for number in range(_SEATS):
        seats.ask(sequence(f"before-{number}", rank=number, prompt=prompt))
        assert len(seated(seats)) == 1
        seats.note(None, [StepOutput(f"before-{number}", answer, is_last=True)])
    return seats


def tokens_at_a_time(seats: Seats, prompt: int) -> int:
    """Of a crowd that comes now."""
    for number in range(_SEATS):
        seats.ask(sequence(f"{number}", rank=number, prompt=prompt))
    return prompt * len(seated(seats))


@pytest.mark.parametrize(
    ("prompt", "answer", "most"),
    [
        # A step needs 128 tokens, and 512.
        (64, 128, CROWD_TOKENS),
        # So many rows begin every 11 steps, or a few more.
        (256, 128, 14 * 512),
        # 1,024 every 8 steps, and 8,192.
        (256, 64, 10 * 1024),
        (256, 8, STEPS_OF_PROMPTS * 8192),
    ],
)
def test_of_a_crowd_begins_what_keeps_the_seats_full_as_soon_as_that_is_known(
    prompt: int, answer: int, most: int
) -> None:
    seats = an_engine_after_rows(prompt=prompt, answer=answer)

    assert tokens_at_a_time(seats, prompt) == most


@pytest.mark.parametrize(
    ("prompt", "answer", "most"),
    [
        # A step needs 32 tokens, 192, and 1,024.
        (16, 128, LEAST_PROMPT_TOKENS),
        (96, 128, 2 * 192),
        (256, 64, QUIET_PROMPT_TOKENS),
    ],
)
def test_beside_a_small_batch_begin_no_more_prompts_than_keep_the_seats_full(
    prompt: int, answer: int, most: int
) -> None:
    seats = an_engine_after_rows(prompt=prompt, answer=answer)
    seats.ask(sequence("small", is_spare=True, prompt=0))
    assert seated(seats) == ["small"]

    assert tokens_at_a_time(seats, prompt) == most


def test_a_crowd_of_small_batches_does_not_wait_for_one_of_them() -> None:
    seats = an_engine_after_rows(prompt=96, answer=128)
    seats.ask(sequence("small", is_spare=True, prompt=0))
    assert seated(seats) == ["small"]
    for number in range(_SEATS):
        seats.ask(sequence(f"{number}", rank=number - _SEATS, prompt=96))

    assert 96 * len(seated(seats)) == 14 * 192


def test_beside_live_calls_begin_a_few_more() -> None:
    seats = an_engine_after_rows(prompt=96, answer=128)
    seats.yield_to_live(limit=_SEATS, reserve=0, is_live_near=True)

    assert tokens_at_a_time(seats, 96) == 3 * 192


def test_a_step_beside_live_calls_has_a_little_more_than_keeps_the_seats_full() -> None:
    # It needs 192 tokens.
    seats = an_engine_after_rows(prompt=96, answer=128)
    assert seats.step_tokens == 1.25 * 192

    # Of a fourth of the seats.
    seats.yield_to_live(limit=_SEATS // 4, reserve=0)
    assert seats.step_tokens == 128


def test_as_long_as_no_answer_is_known_nothing_is_said_about_a_step() -> None:
    assert Seats(CAPACITY).step_tokens == math.inf


def test_of_a_crowd_only_what_is_not_cached_counts() -> None:
    seats = Seats(CAPACITY._replace(kv_tokens=0, step_tokens=100))
    for number in range(6):
        seats.ask(sequence(f"{number}", rank=number, prompt=100)._replace(cached_tokens=50))

    assert len(seated(seats)) == 2 * STEPS_OF_PROMPTS


def test_a_prompt_that_takes_many_steps_begins_alone() -> None:
    seats = Seats(CAPACITY._replace(kv_tokens=0, step_tokens=100))
    seats.ask(sequence("long", rank=0, prompt=100 * STEPS_OF_PROMPTS + 1))
    seats.ask(sequence("next", rank=1, prompt=1))

    assert seated(seats) == ["long"]
    seats.note(None, [StepOutput("long", 1, is_last=False)])
    assert seated(seats) == ["next"]


def test_one_that_is_too_large_for_the_cache_runs_alone() -> None:
    seats = Seats(CAPACITY)
    seats.ask(sequence("huge", output=5000))

    assert seated(seats) == ["huge"]
    seats.ask(sequence("next"))
    assert seated(seats) == []
    seats.leave("huge")
    assert seated(seats) == ["next"]


_IDS = st.integers(0, 30).map(str)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("ask"), _IDS, st.booleans()),
            st.tuples(st.just("leave"), _IDS, st.booleans()),
            st.tuples(st.just("step"), _IDS, st.booleans()),
        ),
        max_size=200,
    )
)
def test_each_has_one_seat_and_none_is_lost(steps: list[tuple[str, str, bool]]) -> None:
    seats = Seats(CAPACITY)
    waiting: set[str] = set()
    inside: set[str] = set()
    spare: set[str] = set()
    for verb, id_, flag in steps:
        if verb == "ask" and id_ not in waiting | inside:
            waiting.add(id_)
            spare = spare | {id_} if flag else spare - {id_}
            one = sequence(id_, is_spare=flag, prompt=int(id_) * 20, output=int(id_))
            seats.ask(one._replace(max_tokens=int(id_) if int(id_) % 2 else math.inf))
        elif verb == "leave":
            seats.leave(id_)
            waiting.discard(id_)
            inside.discard(id_)
        elif verb == "step":
            seats.note(0.0, [StepOutput(one, 1, is_last=flag and one == id_) for one in inside])
            if flag:
                inside.discard(id_)
        for given_id in seated(seats):
            assert given_id in waiting
            waiting.remove(given_id)
            inside.add(given_id)
        assert seats.in_use == len(inside) <= SEATS + SEATS // 2 + SPARE
        assert len(inside - spare) <= SEATS + SEATS // 2
        assert inside or not waiting
    for id_ in waiting | inside:
        seats.leave(id_)
    assert seats.in_use == 0
