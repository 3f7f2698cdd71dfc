"""Follows batches from their events, across broken connections and restarts of the gateway."""

import time
from collections.abc import Generator
from typing import Any

from cli.client.event_stream import events
from cli.client.gateway import Gateway
from shared.errors import TransientError
from shared.lifecycle import FINAL

_PAUSE_SECONDS = 0.5


def follow(gateway: Gateway, batch_id: str) -> Generator[dict[str, Any] | None, None, None]:
    """The batch as it is now and at each change, up to its end; None now and then in between.

    Raises TransientError if the gateway does not answer for longer than its patience.
    """
    seen = ""
    while True:
        headers = {"last-event-id": seen} if seen else {}
        with gateway.open(f"batches/{batch_id}/events", headers=headers) as answer:
            try:
                for event in events(answer.chunks):
                    if event is None:
                        yield None
                        continue
                    seen = event.id
                    yield event.batch
                    if event.batch["status"] in FINAL:
                        return
            except TransientError:
                # The next call goes on after the last event.
                pass
        yield None
        # A gateway that is about to stop ends its streams before it stops to listen.
        time.sleep(_PAUSE_SECONDS)
