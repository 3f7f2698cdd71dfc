"""A client that knows the fleet from its documents alone, and judges what it was given.

It imports nothing of the product: what the product and its own checker both have wrong, it finds.
"""
