"""`python -m tests.chaos --minutes 15 --seed 7`: the fleet under fire, and the proof afterwards.

`python -m tests.chaos --check RUN_DIR` judges an earlier run again, from its files alone.
"""

import argparse
import asyncio
import logging
import secrets
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.chaos.checker import absorbed, check
from tests.chaos.evidence import load
from tests.chaos.run import Options, Outcome, run, say

_SHOWN = 20


def main() -> int:
    """Exit code 1 for any violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31))
    parser.add_argument(
        "--points",
        type=int,
        nargs="?",
        const=1,
        default=0,
        metavar="N",
        help="first die at each named point N times: on the first passage, on the second, …",
    )
    parser.add_argument("--kills", type=int, default=0, help="end early, after this many kills")
    parser.add_argument("--only", metavar="PROCESS", help="kill this one, and break nothing else")
    parser.add_argument("--gap", type=float, help="seconds between faults, on average: 2, or 10")
    parser.add_argument(
        "--armed", action="store_true", help="every process dies at a named point, again and again"
    )
    parser.add_argument(
        "--engine", choices=("stub", "real"), default="stub", help="made up, or Ray and vLLM"
    )
    parser.add_argument("--clients", type=int, default=12, help="batches under way at once")
    parser.add_argument("--folder", type=Path, help="where the run directory is made")
    parser.add_argument("--keep", action="store_true", help="keep it even if all is well")
    parser.add_argument("--check", type=Path, metavar="RUN_DIR")
    options = parser.parse_args()
    if options.check:
        evidence = load(options.check)
        outcome = Outcome(check(evidence), {}, absorbed(evidence), Counter(), Counter())
        return _tell(outcome, options.check, options.seed)
    # Lane jobs are not our own children, so the end of a run must end them too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Lost connections are normal in a run.
    for library in ("aio_pika", "aiormq"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir=options.folder))
    say(f"seed {options.seed}; run directory {folder}")
    intent = Options(
        folder,
        seconds=60 * options.minutes,
        seed=options.seed,
        points=options.points,
        at_once=options.clients,
        gap_seconds=options.gap or (10.0 if options.engine == "real" else 2.0),
        always_armed=options.armed,
        is_real=options.engine == "real",
        kills=options.kills,
        only=options.only,
    )
    outcome = asyncio.run(run(intent, say))
    code = _tell(outcome, folder, options.seed)
    if code == 0 and not options.keep:
        shutil.rmtree(folder)
    return code


def _tell(outcome: Outcome, folder: Path, seed: int) -> int:
    """The summary table."""
    kinds = Counter(violation.kind for violation in outcome.violations)
    for title, table in (
        ("faults", outcome.faults),
        ("happened", outcome.counts),
        ("absorbed", outcome.absorbed),
        ("ended by themselves", outcome.odd_ends),
        ("VIOLATIONS", kinds),
    ):
        if table:
            say(f"\n{title}")
            for name, count in sorted(table.items()):
                say(f"  {name:<42} {count:>8}")
    for violation in outcome.violations[:_SHOWN]:
        say(f"  {violation.kind}: {violation.about}: {violation.says}")
    if outcome.violations:
        say(f"\n{len(outcome.violations)} violations; seed {seed}; everything is in {folder}")
        return 1
    say(f"\nno violation; seed {seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
