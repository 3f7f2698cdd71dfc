"""The demo's support tickets: invented, believable, and the same every time. Does no I/O.

A ticket is put together from a product, a problem, a detail and a tone, so that tickets of one
topic share a meaning and few words.
"""

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Ticket(NamedTuple):
    """One customer's message; `topic` is for us and is never sent anywhere."""

    id: str
    topic: str
    text: str


#: What is asked of the finished embeddings.
QUESTIONS = (
    "Who is locked out of their account?",
    "Which devices lose their Wi-Fi connection?",
    "Who paid twice for the same order?",
)

#: Product → the topics that make sense for it.
_PRODUCTS: Mapping[str, Sequence[str]] = {
    "Lumen desk lamp": ("wifi", "damage", "light"),
    "Halo smart bulb": ("wifi", "light", "app"),
    "Kestrel doorbell camera": ("wifi", "battery", "video", "app"),
    "Orca robot vacuum": ("wifi", "battery", "noise", "app"),
    "Pebble bike computer": ("battery", "gps", "app"),
    "Sonora headset": ("battery", "sound", "damage"),
    "Tern travel speaker": ("battery", "sound", "damage"),
    "Alto record player": ("noise", "damage", "smell"),
    "Bruno espresso machine": ("leak", "noise", "damage"),
    "Nimbus air purifier": ("noise", "wifi", "smell"),
    "Quill e-reader": ("battery", "screen", "damage"),
    "Marlin dishwasher": ("leak", "noise", "smell"),
}
_PROBLEMS: Mapping[str, Sequence[str]] = {
    "wifi": (
        "my {product} drops off the wireless network every evening",
        "the {product} will not join our new router any more",
        "the {product} shows as offline although every other device has internet",
        "since the last update the {product} loses its Wi-Fi signal after a few minutes",
    ),
    "battery": (
        "the {product} is empty after two hours, it used to last for days",
        "my {product} does not charge any longer, whichever cable I take",
        "the {product} switches itself off at forty per cent",
        "the {product} gets hot on the charger and never reaches full",
    ),
    "app": (
        "the phone app crashes as soon as I add the {product}",
        "the app cannot find the {product} during setup",
        "the schedules that I set for the {product} in the app are gone after each restart",
    ),
    "light": (
        "the {product} flickers at low brightness",
        "the {product} stays dim, even at the highest setting",
        "the colour of the {product} has turned greenish",
    ),
    "video": (
        "the picture of the {product} is black at night",
        "recordings of the {product} break off after three seconds",
        "the {product} reports motion when nothing moves, dozens of times a day",
    ),
    "noise": (
        "the {product} has started to rattle loudly",
        "the {product} makes a grinding sound that wakes the neighbours",
        "there is a high whine from the {product} whenever it runs",
    ),
    "sound": (
        "the left side of the {product} is silent",
        "the {product} crackles as soon as I turn the volume up",
        "music on the {product} stutters when my phone is in another room",
    ),
    "gps": (
        "the {product} draws my route right through the river",
        "it takes the {product} ten minutes to find a satellite",
        "the distance on the {product} is a third too short",
    ),
    "leak": (
        "water runs out from under the {product} every time",
        "there is a puddle below the {product} in the morning",
        "the {product} drips at the back, and the floor is wet",
    ),
    "screen": (
        "there are dark stripes across the display of the {product}",
        "the {product} no longer reacts when I touch the screen",
        "the old page stays visible as a ghost on my {product}",
    ),
    "smell": (
        "the {product} smells of burnt plastic",
        "a musty smell comes from the {product} since last week",
    ),
    "damage": (
        "the {product} arrived with a crack down one side",
        "the box was crushed and the {product} in it is bent",
        "a part of the {product} broke off on the first day",
    ),
    "login": (
        "I cannot sign in any more, my password is not accepted",
        "the password reset mail never reaches me",
        "my account was locked after too many attempts",
        "the code for the second step of the login always comes too late",
        "somebody changed the e-mail address of my account and I am shut out",
    ),
    "payment": (
        "my card was charged twice for the same order of the {product}",
        "you took the money for the {product} two times on one day",
        "my bank statement has a double payment for the {product}",
        "the voucher was not taken off the price of the {product}",
    ),
    "invoice": (
        "I need an invoice for the {product} with our company's VAT number",
        "the invoice for the {product} shows the wrong address",
        "please send me the receipt for the {product} again, for the tax office",
    ),
    "delivery": (
        "the parcel with the {product} is marked as delivered, but nothing was at the door",
        "the {product} has been on its way for three weeks",
        "tracking for the {product} has not moved since Monday",
        "the courier left the {product} with a neighbour whom nobody here knows",
    ),
    "wrong item": (
        "I ordered the {product} in black and received a white one",
        "instead of the {product} there was something else in the box",
        "the power adapter of the {product} is for another country",
    ),
    "return": (
        "I would like to send the {product} back, how do I get a label?",
        "I returned the {product} a month ago and still have no refund",
        "am I still within the return period for the {product}?",
    ),
    "cancel": (
        "please cancel my order of the {product}, it has not been shipped yet",
        "how do I end the protection plan for the {product}?",
        "my subscription was renewed although I had cancelled it",
    ),
    "advice": (
        "does the {product} work without an account?",
        "will the {product} fit next to a radiator?",
        "which spare parts for the {product} can I order?",
    ),
}
#: Topics that any product can have.
_COMMON = (
    "login",
    "payment",
    "invoice",
    "delivery",
    "wrong item",
    "return",
    "cancel",
    "advice",
)
#: What people add, about a product that fails and about an order.
_TRIED = (
    "I have tried what the manual says, without success.",
    "Nothing else in the house has changed.",
    "It began on a {day}.",
    "I bought it in {month}.",
    "It is the second time since {month}.",
    "",
)
_ORDERED = (
    "The order number is {order}.",
    "My order was {order}, placed in {month}.",
    "I wrote to you about it in {month} already.",
    "Order {order}.",
    "",
)
#: Beginning and end, by tone.
_TONES = (
    ("Hello,", "Many thanks for your help!"),
    ("Dear support team,", "I look forward to your answer. Kind regards, {name}"),
    ("Hi there!", "Could you have a look? Cheers, {name}"),
    ("", ""),
    ("", "I expect an answer today."),
    ("This is getting ridiculous.", "Fix it or I want my money back!"),
    ("I am rather disappointed.", "{name}"),
    ("A happy customer so far, but now this:", "Thanks, {name}"),
    ("To whom it may concern:", "Yours sincerely, {name}"),
    ("Sorry to bother you.", "No hurry. {name}"),
)
_NAMES = (
    "Amara", "Bogdan", "Chiara", "Dmitri", "Elif", "Farid", "Greta", "Hiro", "Ines", "Jonas",
    "Katrin", "Lwazi", "Mei", "Noor", "Oscar", "Priya", "Quentin", "Rosa", "Sven", "Tomás",
)  # fmt: skip
_MONTHS = ("January", "March", "April", "June", "August", "September", "November")
_DAYS = ("Monday", "Tuesday", "Thursday", "Saturday", "Sunday")
#: This many of ten tickets are about the product itself.
_ABOUT_PRODUCT = 0.55


def tickets(count: int) -> list[Ticket]:
    """The first `count` tickets, no two of the same text."""
    dice = random.Random(2026)  # the tickets must be the same each time, not secret
    made: list[Ticket] = []
    seen: set[str] = set()
    while len(made) < count:
        topic, text = _write(dice)
        if text not in seen:
            seen.add(text)
            made.append(Ticket(f"ticket-{len(made) + 1:03d}", topic, text))
    return made


def _write(dice: random.Random) -> tuple[str, str]:
    product = dice.choice(list(_PRODUCTS))
    is_about_product = dice.random() < _ABOUT_PRODUCT
    topic = dice.choice(_PRODUCTS[product] if is_about_product else _COMMON)
    problem = dice.choice(_PROBLEMS[topic]).format(product=product)
    detail = dice.choice(_TRIED if is_about_product else _ORDERED).format(
        month=dice.choice(_MONTHS),
        day=dice.choice(_DAYS),
        order=f"{dice.choice('BKRT')}-{dice.randrange(10_000, 99_999)}",
    )
    beginning, end = dice.choice(_TONES)
    # After a comma or colon the sentence goes on.
    if not beginning.endswith((",", ":")):
        problem = problem[0].upper() + problem[1:]
    if not problem.endswith("?"):
        problem += "."
    sentences = (beginning, problem, detail, end.format(name=dice.choice(_NAMES)))
    return topic, " ".join(sentence for sentence in sentences if sentence)
