"""What the pages of examples/ show of their programs' output, compared with what they print.

Numbers differ from run to run, and so do the words of a model with random weights.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

#: A block of a terminal; the first one of a page is its example.
_BLOCK = re.compile(r"^```\n(\$ .*?)^```", re.MULTILINE | re.DOTALL)
#: What a page leaves out: the rest of a line, or with a line of its own the rest of the output.
_CUT = "[…"
_NUMBER = re.compile(r"\d+(\.\d+)?")


def shown(page: Path) -> list[str]:
    """The lines that the page shows, without the commands, up to what it leaves out."""
    found = _BLOCK.search(page.read_text())
    assert found is not None, f"{page} shows no output"
    return list(_output(found[1].splitlines()))


def assert_shown(
    page: Path, printed: Iterable[str], *, texts: Sequence[str] = (), progress: str = r"(?!)"
) -> None:
    """Fail unless these lines are what the page shows, line by line, but for their numbers.

    What follows the first group of a pattern in `texts` may be anything, and lines of `progress`
    are those of a terminal, which nobody sees here.
    """
    wanted = [line for line in shown(page) if not re.match(progress, line)]
    lines = list(printed)
    assert len(wanted) > 1
    cut = len(wanted) if is_cut(page) else len(lines)
    found = [_shape(line, texts) for line in lines[:cut]]
    assert len(found) == len(wanted), f"{page} shows {len(wanted)} lines, and {len(found)} came"
    for line, came in zip(wanted, found, strict=True):
        shape, is_short = _shape(line.partition(_CUT)[0], texts), _CUT in line
        assert came == shape or (is_short and came.startswith(shape.removesuffix(" ")))


def is_cut(page: Path) -> bool:
    """Whether the page says that there is more than it shows."""
    found = _BLOCK.search(page.read_text())
    return found is not None and any(line.startswith(_CUT) for line in found[1].splitlines())


def _output(lines: Sequence[str]) -> Iterator[str]:
    is_command = False
    for line in lines:
        is_command = is_command or line.startswith("$ ")
        if line.startswith(_CUT):
            return
        if not is_command:
            yield line
        # A command may go on in the next line.
        is_command = is_command and line.endswith("\\")


def _shape(line: str, texts: Sequence[str]) -> str:
    """The line with a `#` for each number, and each run of spaces as one."""
    for pattern in texts:
        line = re.sub(pattern, r"\1…", line)
    return re.sub(r" +", " ", _NUMBER.sub("#", line)).rstrip()
