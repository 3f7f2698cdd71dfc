"""Live calls that tenants make, in all gateways together, and their tokens a minute."""

from typing import NamedTuple

from shared.state.limits import Rate, RateStatus
from shared.state.scripts import Scripts
from shared.state.streams import Stream, Streams

_MINUTE = 60


class TooManyCalls(NamedTuple):
    """The tenant makes as many live calls at once as it may."""

    limit: int
    used: int


class LiveCallLimits(NamedTuple):
    """What holds for a tenant for which nothing else is set."""

    #: At once.
    calls: int
    tokens_per_minute: int


class LiveCalls:
    """The noun `live call` of State."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        #: Those that have begun, until they end.
        self.open = Streams(scripts, "live-calls")

    async def begin(
        self,
        call: Stream,
        *,
        tokens: int,
        limits: LiveCallLimits,
        seconds: float,
        requests: Rate | None = None,
    ) -> RateStatus | TooManyCalls:
        """Count a call that takes so many tokens, for so long unless it is renewed.

        Counts it against the rate of requests as well if no key has. Nothing is counted if the
        tenant makes too many calls, or if the answer has a `wait`; its rate says of what.
        """
        rate = Rate("live-tokens", limits.tokens_per_minute, _MINUTE, "live_tokens_per_minute")
        uncounted = requests.arguments if requests else ()
        outcome, *found = await self._scripts.run(
            "begin_live_call",
            *call,
            int(seconds * 1000),
            tokens,
            limits.calls,
            *rate.arguments,
            *uncounted,
        )
        if outcome == "calls":
            return TooManyCalls(*found)
        if outcome != "begun":
            calls, wait, reset = found
            if outcome == "requests" and requests:
                rate = requests
            return RateStatus(rate._replace(calls=calls), wait, 0, reset)
        calls, left, reset = found
        return RateStatus(rate._replace(calls=calls), 0, left, reset)
