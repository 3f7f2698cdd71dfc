"""Invented posts about invented products, the same every time."""

import random

PRODUCTS = ("kettle", "bicycle", "headset", "raincoat", "desk lamp")
OPENINGS = ("Three weeks with this {product}:", "About my {product}.", "So, the {product}:", "")
PRAISE = (
    "it does what it should, every day.",
    "I would buy the {product} again at once.",
    "my sister has ordered one too.",
    "better than the one I had for ten years.",
)
BLAME = (
    "it broke on the second day.",
    "the {product} smells, and support does not answer.",
    "I have sent it back twice.",
    "do not spend money on this.",
)
PLAIN = ("it came on a Tuesday.", "it is blue.", "the box is 30 cm wide.", "I use it at work.")


def posts(count: int) -> list[dict[str, str]]:
    """So many of them, each with an id and a product."""
    dice = random.Random(19)
    found = []
    for number in range(count):
        product = dice.choice(PRODUCTS)
        words = dice.choice((PRAISE, PRAISE, BLAME, PLAIN))
        text = f"{dice.choice(OPENINGS)} {dice.choice(words)} {dice.choice(words)}".strip()
        post = {"id": f"post-{number}", "product": product, "text": text.format(product=product)}
        found.append(post)
    return found
