"""Those who wait for something that is done for several at once."""

import asyncio


def tell(done: asyncio.Future[None], error: BaseException | None) -> None:
    """Say how it went to who waits, unless they have given up."""
    if done.cancelled():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
