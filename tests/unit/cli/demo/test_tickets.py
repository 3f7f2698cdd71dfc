from collections import Counter

from cli.demo.tickets import tickets


def test_the_tickets_are_the_same_every_time() -> None:
    assert tickets(50) == tickets(50)


def test_more_tickets_begin_with_the_same_ones() -> None:
    assert tickets(300)[:20] == tickets(20)


def test_no_two_tickets_are_alike() -> None:
    made = tickets(300)

    assert len({ticket.text for ticket in made}) == 300
    assert len({ticket.id for ticket in made}) == 300


def test_every_topic_of_a_question_has_several_tickets() -> None:
    topics = Counter(ticket.topic for ticket in tickets(300))

    assert min(topics["login"], topics["wifi"], topics["payment"]) >= 8


def test_every_ticket_is_a_whole_text() -> None:
    for ticket in tickets(300):
        assert "{" not in ticket.text
        assert ticket.text[0].isupper()
