from shared.ordering.shares import Shares


def test_a_share_is_counted_in_units_of_weight() -> None:
    shares = Shares()
    shares.weigh("big", 4.0)

    shares.charge("big", 100.0)
    shares.charge("small", 100.0)

    assert (shares.of("big"), shares.of("small")) == (25.0, 100.0)


def test_who_comes_back_starts_where_the_poorest_stands() -> None:
    shares = Shares({"rich": 900.0, "poor": 500.0, "back": 10.0})

    shares.join("back", ["rich", "poor"])

    assert shares.of("back") == 500.0


def test_who_comes_back_with_a_debt_keeps_it() -> None:
    shares = Shares({"poor": 500.0, "back": 800.0})

    shares.join("back", ["poor"])

    assert shares.of("back") == 800.0


def test_who_comes_to_an_empty_line_keeps_its_share() -> None:
    shares = Shares({"a": 5.0})

    shares.join("a", [])

    assert shares.of("a") == 5.0


def test_who_comes_back_is_not_behind_what_others_have_only_begun() -> None:
    shares = Shares({"rich": 900.0, "back": 10.0})
    shares.weigh("rich", 2.0)
    shares.begin("rich", 600.0)

    shares.join("back", ["rich"])

    assert (shares.of("rich"), shares.of("back")) == (900.0, 600.0)


def test_what_has_ended_counts_for_those_who_come_back() -> None:
    shares = Shares({"rich": 900.0})
    shares.begin("rich", 600.0)
    shares.end("rich", 600.0)

    shares.join("back", ["rich"])

    assert shares.of("back") == 900.0
