"""What the fleet makes of a card: `make bench-gpu`, or `python -m benchmarks.gpu [CASE ...]`.

Both sides of each ratio run in turns on one card: the fleet, and vLLM's `AsyncLLM` alone. All
models have random weights, nothing comes from a network, and each case is written when it ends:

    python -m benchmarks.gpu --run-dir DIR --models FOLDER --minutes 20 --price-per-hour 3

A run with `--scale 0.02 --shapes tiny` goes through everything in minutes, also on a processor. A
run of some cases keeps what the file has of the others. A run directory may be one that exists.
With BATCHYARD_MIXED_BATCHES=true, `mixed` has a file with several endpoints, too.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import yaml

from benchmarks.figures import Figure
from benchmarks.gpu import card, cards, others, rates, recovery, waits
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.models import EMBED, LARGE, SHAPES, SMALL, make_models
from benchmarks.gpu.plan import EACH, EMBEDS, SHARED, Plan
from benchmarks.gpu.results import CaseResult, Results, machine
from benchmarks.noted_steps import FOLDER_VARIABLE
from cli.fleet import Options, foreground
from shared.errors import SetupError

_RESULTS = Path(__file__).parents[1] / "results-gpu.json"
#: Of a machine with several cards.
_RESULTS_OF_CARDS = _RESULTS.with_name("results-gpus.json")
#: Of a run that tells nothing of a card.
_REHEARSED = _RESULTS.with_name("results-gpu-rehearsed.json")
_FILE = "gpu-catalog.yaml"
#: What the start of all engines may take, in seconds.
_START_SECONDS = 420
#: Less is not enough for any case.
_LEAST_SECONDS = 15


class Case(NamedTuple):
    """What is measured, and how long it may take, in seconds."""

    measure: Callable[[Bench], Iterator[Figure]]
    seconds: float
    #: Models with an engine on both sides, and those that only the fleet has, from the beginning.
    both: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()


#: In the order of their importance.
CASES = {
    "front": Case(rates.front, 150, (SMALL,)),
    "embeddings": Case(rates.embeddings, 150, (EMBED,)),
    "small": Case(rates.small, 150, (SMALL,)),
    "large": Case(rates.large, 420, (LARGE,)),
    "many-batches": Case(rates.many_batches, 150, (LARGE,)),
    "share": Case(rates.share, 210, (SMALL,), (SHARED,)),
    "share-embeddings": Case(rates.share_embeddings, 150, (EMBED,), (EMBEDS,)),
    "mixed": Case(rates.mixed, 300, (SMALL, EMBED)),
    "wide": Case(rates.wide, 240),
    "kill": Case(recovery.kill, 150, (LARGE,)),
    "cold": Case(recovery.cold, 150, (LARGE,)),
    "lanes": Case(waits.lanes, 180, (SMALL, LARGE)),
    "giants": Case(waits.beside_giants, 750, (), (LARGE, EMBED)),
    "live": Case(waits.live, 270, (LARGE,)),
    "door": Case(waits.door, 240),
    "prefixes": Case(rates.prefixes, 180, (LARGE,)),
    "serve": Case(others.serve, 300, (SMALL, EMBED)),
    "ray-data": Case(others.ray_data, 300),
}
#: Where there are several cards.
CASES_OF_CARDS = {
    "cards": Case(cards.each, 150, (LARGE,), (EACH,)),
    "cards-live": Case(cards.live, 270, (LARGE,), (EACH,)),
    "cards-kill": Case(cards.kill, 120, (LARGE,), (EACH,)),
}
#: Those that are run alone, as they need whole cards.
CASES_ALONE = {
    "cards-tensor": Case(cards.tensor, 300, (LARGE,)),
}


class TooLongError(Exception):
    """A case has used up its time."""


def main() -> None:
    options = _options()
    folder = options.models or options.run_dir / "gpu-models"
    sources = make_models(folder, options.shapes, options.tokenizer)
    if options.make_models:
        print(f"made  {folder}")
        return
    about = machine()
    name = card.short_name(about["card"])
    count = options.cards or about.get("cards", 1)
    cases = cases_of(options.cases, count)
    plan = Plan(
        sources,
        name,
        scale=options.scale,
        turns=options.turns,
        replicas=options.replicas,
        price_per_hour=options.price_per_hour if name else 0.0,
        cards=count,
        early={model for case in cases.values() for model in case.ours},
        steps=_folder_of_steps(options.run_dir) if options.steps else None,
        engine=options.engine,
    )
    kept = _RESULTS if plan.cards == 1 else _RESULTS_OF_CARDS
    results = Results(
        options.results or (kept if name and options.shapes == "real" else _REHEARSED),
        {"machine": about, "scale": options.scale, "shapes": options.shapes,
         "price_per_hour": options.price_per_hour},
    )  # fmt: skip
    print(f"machine  {about}", flush=True)
    until = time.monotonic() + 60 * options.minutes
    catalog = (options.run_dir / _FILE).resolve()
    catalog.write_text(yaml.safe_dump(plan.catalog(), sort_keys=False))
    fleet_options = Options(options.run_dir, catalog=catalog)
    with foreground(fleet_options, lambda line: print(line, flush=True)) as fleet:
        bench = Bench(fleet, plan, catalog)
        try:
            start = Case(_start(cases.values()), _START_SECONDS)
            for name, case in {"start": start, **cases}.items():
                limited = case._replace(seconds=case.seconds * options.patience)
                _run(name, limited, bench, results, until)
        finally:
            bench.stop()


def cases_of(names: Sequence[str], cards: int) -> Mapping[str, Case]:
    """Those that are named, or all that can be run after each other."""
    usual = CASES | (CASES_OF_CARDS if cards > 1 else {})
    known = usual | (CASES_ALONE if cards > 1 else {})
    for name in names:
        if name not in known:
            raise SystemExit(f"{name} needs several cards.")
        if name in CASES_ALONE and len(names) > 1:
            raise SystemExit(f"{name} needs whole cards: run it alone.")
    return {name: known[name] for name in names or usual}


def _folder_of_steps(run_dir: Path) -> Path:
    """Where all engines note their steps, those of bare engines too."""
    folder = (run_dir / "steps").resolve()
    folder.mkdir(exist_ok=True)
    os.environ[FOLDER_VARIABLE] = str(folder)
    return folder


def _start(cases: Iterable[Case]) -> Callable[[Bench], Iterator[Figure]]:
    both = dict.fromkeys(model for case in cases for model in case.both)
    ours = dict.fromkeys(model for case in cases for model in case.ours)

    def start(bench: Bench) -> Iterator[Figure]:
        """The fleet, and every engine that is measured early, all at once."""
        for model in both:
            bench.launch_bare(model)
        try:
            bench.fleet.start()
        except SetupError as error:
            # A busy machine may be too slow for a start once.
            print(f"  starting again: {error}", flush=True)
            bench.fleet.stop()
            bench.fleet.start()
        bench.connect()
        # A run that was interrupted may have left some.
        bench.cancel_all()
        yield from bench.start_engines(tuple(both), tuple(ours))

    return start


def _run(name: str, case: Case, bench: Bench, results: Results, until: float) -> None:
    """One case within its time; whatever stops it is kept with what it has found."""
    bench.case = result = CaseResult()
    left = until - time.monotonic()
    if left < _LEAST_SECONDS:
        # What an earlier run found of it stays.
        print(f"case  {name} is left out: the time of the run is over", flush=True)
        return
    print(f"case  {name}", flush=True)
    began = time.monotonic()
    try:
        with _limited(min(case.seconds, left)):
            for figure in case.measure(bench):
                result.figures.append(figure)
                _say(figure, results.before(figure))
                results.keep(name, result)
    except Exception as error:  # noqa: BLE001  # the next case may work
        result.error = f"{type(error).__name__}: {error}"[:2000]
        print(f"  FAILED  {result.error}", flush=True)
        traceback.print_exc(file=sys.stdout)
    result.seconds = round(time.monotonic() - began, 1)
    results.keep(name, result)
    print(f"case  {name} took {result.seconds:.0f} s", flush=True)
    if result.error and name != "start":
        _tidy(bench)


def _tidy(bench: Bench) -> None:
    try:
        with _limited(30):
            bench.cancel_all()
    except Exception as error:  # noqa: BLE001  # as above
        print(f"  not tidied: {error!r}", flush=True)


def _say(figure: Figure, before: float | None) -> None:
    then = "" if before is None else f", last time {before:.3g}"
    print(
        f"  {'ok' if figure.holds else 'MISSED'}  {figure.name}: {figure.value:.4g} / "
        f"{figure.baseline:.4g} {figure.unit} = {figure.ratio:.3g} ({figure.goal}{then})",
        flush=True,
    )


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise TooLongError in the main thread when the time is over, and again if it is lost."""

    def stop(*_: object) -> None:
        raise TooLongError(f"It was given up after {seconds:.0f} s.")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 5.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = [*CASES, *CASES_OF_CARDS, *CASES_ALONE]
    parser.add_argument("cases", nargs="*", choices=[*known, []], metavar="CASE")
    parser.add_argument("--run-dir", type=Path, help="of the fleet; made if it is missing")
    parser.add_argument("--models", type=Path, help="folder of the models; made if missing")
    parser.add_argument("--tokenizer", type=Path, help="Mistral's tekken.json, to make models")
    parser.add_argument("--make-models", action="store_true", help="make the models, and end")
    parser.add_argument("--results", type=Path, help="default: beside this package")
    parser.add_argument("--shapes", choices=SHAPES, default="real")
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of rows")
    parser.add_argument("--turns", type=int, default=2, help="how often to measure both sides")
    parser.add_argument("--replicas", type=int, default=4, help="of one model on one card")
    parser.add_argument("--cards", type=int, help="how many to use; default: all")
    parser.add_argument("--minutes", type=float, default=20.0, help="of the whole run, at most")
    parser.add_argument("--patience", type=float, default=1.0, help="of each case's time limit")
    parser.add_argument("--steps", action="store_true", help="say what was in the engines' steps")
    parser.add_argument(
        "--engine",
        type=json.loads,
        default={},
        help="further arguments of the engines that write, as JSON",
    )
    parser.add_argument("--price-per-hour", type=float, default=3.0, help="of the card")
    options = parser.parse_args()
    options.run_dir = options.run_dir or Path(tempfile.mkdtemp(prefix="batchyard-gpu-"))
    options.run_dir.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    main()
