"""`python -m tests.fuzz --count N`: N random lines through the line check, N / 10 random forms.

A failure names the seed that repeats it alone.
"""

import argparse
import random
import secrets
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from tests.fuzz.forms import check_a_form
from tests.fuzz.lines import check_a_file

T = TypeVar("T")


def fuzz_lines(count: int, seed: int) -> int:
    """Check files until they held `count` lines; returns how many it were."""
    done = 0
    while done < count:
        done += _tried(check_a_file, seed)
        seed += 1
    return done


def fuzz_forms(count: int, seed: int) -> None:
    """Check `count` forms."""
    for number in range(count):
        _tried(check_a_form, seed + number)


def _tried(check: Callable[[random.Random], T], seed: int) -> T:
    try:
        return check(random.Random(seed))
    except Exception as error:
        error.add_note(f"To repeat it: {check.__module__}.{check.__name__}(Random({seed}))")
        raise


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000, help="lines; forms are a tenth")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**40))
    options = parser.parse_args()
    began = time.perf_counter()
    done = fuzz_lines(options.count, options.seed)
    fuzz_forms(options.count // 10, options.seed)
    seconds = time.perf_counter() - began
    sys.stdout.write(
        f"{done} lines and {options.count // 10} forms in {seconds:.0f} s, seed {options.seed}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
