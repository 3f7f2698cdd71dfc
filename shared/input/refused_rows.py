"""Counts the requests of an input that get an error for what their lines ask for. Pure."""

from shared.openai.bodies import Refusal
from shared.openai.shapes import BatchError

#: Characters of a client's own name of a field that are repeated, and fields that are counted.
_MAX_NAME, _MAX_NAMES = 64, 20
#: Characters of the reason: some name all places of a tenant.
_MAX_WHY = 300


class RefusedRows:
    """Bounded: of more fields than it counts, the later ones are left out."""

    def __init__(self) -> None:
        #: By field or code, how many requests, and the line and the words of the first.
        self._found: dict[str, tuple[int, int, str]] = {}

    def add(self, line: int, refusal: Refusal) -> None:
        """Count the request in this line of the input."""
        # Without the places in a list, of which each request may have others.
        field = (refusal.param or "").partition(".")[0][:_MAX_NAME]
        self._count(f"'{field}'" if field else "the body", line, refusal.message)

    def add_bad_line(self, problem: BatchError) -> None:
        """Count the line, which is no request by OpenAI's rules and gets an error by itself."""
        self._count(f"`{problem.code}`", problem.line or 0, problem.message)

    def messages(self) -> list[str]:
        """What to say of each field, in the order of the lines that have them first."""
        return [
            f"Requests that get an error for {name}: {count:,}. The first is in line {line}: "
            f"{why.removesuffix('.')}."
            for name, (count, line, why) in self._found.items()
        ]

    def _count(self, name: str, line: int, why: str) -> None:
        if name in self._found:
            count, first_line, first_why = self._found[name]
            self._found[name] = (count + 1, first_line, first_why)
        elif len(self._found) < _MAX_NAMES:
            self._found[name] = (1, line, why[:_MAX_WHY])
