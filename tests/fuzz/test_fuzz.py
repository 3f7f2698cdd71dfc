from tests.fuzz.__main__ import fuzz_forms, fuzz_lines


def test_twenty_thousand_lines_whole_and_in_pieces() -> None:
    assert fuzz_lines(20_000, seed=1) >= 20_000


def test_two_thousand_forms_in_pieces() -> None:
    fuzz_forms(2_000, seed=1)
