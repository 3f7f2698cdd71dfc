"""Invented notes of an invented town's archive, the same every time and hardly one like another."""

import random
from collections.abc import Iterator

WHO = ("The council", "A baker", "The harbour master", "Two schoolgirls", "The fire brigade")
DID = (
    "repaired {what} after the storm",
    "complained about {what}",
    "painted {what} in green",
    "lost the keys of {what}",
    "sold tickets for {what}",
    "measured {what} once more",
)
WHAT = (
    "the swing bridge",
    "the clock tower",
    "the ferry to the island",
    "the old cinema",
    "the tram in Mill Street",
    "the greenhouse of the school",
    "the lighthouse",
)
THEN = (
    "It took {days} days.",
    "It cost {sum} crowns.",
    "Nobody noticed before {month}.",
    "The newspaper reported it on page {days}.",
)
MONTHS = ("January", "March", "May", "August", "October", "December")


def notes(count: int) -> Iterator[dict[str, str]]:
    """So many notes, each with its id."""
    dice = random.Random(4)
    for number in range(count):
        what = dice.choice(WHAT)
        first = f"{dice.choice(WHO)} {dice.choice(DID).format(what=what)}."
        second = dice.choice(THEN).format(
            days=dice.randint(2, 90), sum=dice.randint(20, 9000), month=dice.choice(MONTHS)
        )
        year = dice.randint(1890, 1990)
        yield {"id": f"note-{number:06d}", "text": f"{year}: {first} {second}"}
