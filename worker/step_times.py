"""How long an engine's steps take, and how much longer because they have any prompt at all. Pure.

A step of answers alone is one CUDA graph. One with prompts runs piece by piece, which on a small
model takes several times as long, however few tokens the prompts have.
"""

#: A mean follows the last steps: so many of them.
_STEPS = 64
#: Steps with more than this part of the most tokens tell what a token costs.
_LARGE_PART = 0.5
#: Nothing is said before so many steps of each kind.
_LEAST_STEPS = 8


class _Steps:
    """Steps of one kind: means of their times, in seconds, and of their tokens of prompts."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = self.tokens = 0.0

    def note(self, seconds: float, tokens: float) -> None:
        self.count += 1
        weight = 1 / min(self.count, _STEPS)
        self.seconds += weight * (seconds - self.seconds)
        self.tokens += weight * (tokens - self.tokens)


class StepTimes:
    """Those of one engine."""

    def __init__(self, step_tokens: int) -> None:
        """A step has so many tokens at most; 0 if nobody knows."""
        self._large_tokens = _LARGE_PART * step_tokens
        #: Without prompts, with some, and nearly full of them.
        self._plain, self._mixed, self._large = _Steps(), _Steps(), _Steps()

    def note(self, seconds: float, prompt_tokens: float) -> None:
        """A step of an engine that is well filled has taken so long."""
        if not prompt_tokens:
            kind = self._plain
        elif self._large_tokens and prompt_tokens > self._large_tokens:
            kind = self._large
        else:
            kind = self._mixed
        kind.note(seconds, prompt_tokens)

    @property
    def overhead(self) -> float | None:
        """What prompts add to a step besides their tokens, as a part of a step without any.

        None as long as it is not known.
        """
        if min(self._plain.count, self._mixed.count) < _LEAST_STEPS or not self._large.count:
            return None
        tokens = self._large.tokens - self._mixed.tokens
        of_token = max(0.0, self._large.seconds - self._mixed.seconds) / tokens
        added = self._mixed.seconds - self._plain.seconds - of_token * self._mixed.tokens
        return max(0.0, added) / self._plain.seconds
