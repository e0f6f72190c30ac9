"""Which policy should decide how many cores a call gets? A simulation of calls that share 2 to 256 cores.

    python -m benchmarks.policy_simulation                     the table of docs/policy.md
    python -m benchmarks.policy_simulation --quick             a fifth of the cells and of the calls: seconds
    python -m benchmarks.policy_simulation --seed 2            other random calls: is the answer the same?
    python -m benchmarks.policy_simulation --cell '64/*/closed2/*'    only these; a few cells show seconds, too
    python -m benchmarks.policy_simulation --variants          try to beat our rule by changing one thing of it
    python -m benchmarks.policy_simulation --list-cells        what there is to match

A cell is cores/speed-up curve/arrivals/law of work. Curves: amdahl99, 90, 60 (that per cent runs in parallel), flat (no
faster beyond a quarter of the cores), falling (fastest at 8 threads or half of the cores, then slower), shared (memory
bandwidth that all calls share). Arrivals: poisson05 to 80 (load in per cent of the cores), onoff (bursts), batch4 and
batchall (that many at once), closedK (K callers, back to back), think10 (10 callers that pause). Work: equal,
exponential, mixed (one call in ten is 30 times as long).

Regret is a policy's latency divided by that of the best policy of the cell, fixed sizes chosen with hindsight among
them: 1 is perfect. The table has its geometric mean over the cells and the worst cell. What the simulation leaves out
is in docs/policy.md.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import importlib.util
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from benchmarks.policies import OURS, TABLE, Entry, fixed_sizes, latencies_of, theory, variants
from benchmarks.simulated_calls import BUDGETS, Cell, Outcome, all_cells, curve_of, default_cells, load_of, summarize

MEASURES = ("mean", "p99")
THEORY_CALLS = 100_000
Results = dict[str, dict[str, Outcome]]


class Regret(NamedTuple):
    """Of one policy in one measure: over all cells, and its worst cell."""

    average: float
    worst: float
    cell: str


def run_cell(cell: Cell, entries: Mapping[str, Entry], seed: int, calls: int) -> dict[str, Outcome]:
    """What each policy makes of the same calls."""
    curve, load = curve_of(cell.curve, cell.budget), load_of(cell, calls, seed)
    rows = {**TABLE, **fixed_sizes(cell.budget), **entries}
    return {name: summarize(latencies_of(entry, cell, curve, load)) for name, entry in rows.items()}


def run_cells(cells: Sequence[Cell], entries: Mapping[str, Entry], seed: int, few: bool) -> Results:
    """``run_cell`` for each, with a progress bar where standard error is a terminal. ``few``: a fifth of the calls."""
    results: Results = {}
    shown = sys.stderr.isatty()
    for done, cell in enumerate(cells):
        if shown:
            bar = "#" * (30 * done // len(cells))
            print(f"\r[{bar:<30}] {done}/{len(cells)}  {cell.name}\033[K", end="", file=sys.stderr, flush=True)
        calls = 400 + 4 * cell.budget if few else 2000 + 16 * cell.budget
        results[cell.name] = run_cell(cell, entries, seed, calls)
    if shown:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    return results


def best_of(outcomes: Mapping[str, Outcome], measure: str) -> str:
    """The policy that is best in a cell; variants do not take part, so that figures stay comparable."""
    names = (name for name in outcomes if name in TABLE or name.startswith("fixed-"))
    return min(names, key=lambda name: float(getattr(outcomes[name], measure)))


def regrets(results: Results, name: str, measure: str) -> dict[str, float]:
    """By cell."""
    return {
        cell: getattr(outcomes[name], measure) / getattr(outcomes[best_of(outcomes, measure)], measure)
        for cell, outcomes in results.items()
    }


def regret_of(results: Results, name: str, measure: str) -> Regret:
    """Geometric mean and worst."""
    found = regrets(results, name, measure)
    cell = max(found, key=lambda key: found[key])
    return Regret(math.exp(math.fsum(map(math.log, found.values())) / len(found)), found[cell], cell)


def summary(results: Results, names: Iterable[str]) -> dict[str, dict[str, Regret]]:
    return {name: {measure: regret_of(results, name, measure) for measure in MEASURES} for name in names}


def number(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}".replace(",", " ")


def print_summary(found: Mapping[str, Mapping[str, Regret]], titles: Mapping[str, str], base: str = "") -> None:
    """One line a policy. With ``base``, marks what is better than that one in all four, or nowhere worse."""
    width = max(map(len, titles.values()))
    print(f"{'regret':<{width}}   {'mean latency':>18}   {'p99':>18}")
    print(f"{'':<{width}}   {'geo. mean':>9}{'worst':>9}   {'geo. mean':>9}{'worst':>9}")
    for name, row in found.items():
        four = [value for measure in MEASURES for value in (row[measure].average, row[measure].worst)]
        cells = "   ".join(f"{number(row[m].average):>9}{number(row[m].worst):>9}" for m in MEASURES)
        mark = ""
        if base:
            limits = [value for m in MEASURES for value in (found[base][m].average, found[base][m].worst)]
            pairs = list(zip(four, limits, strict=True))
            if all(value < limit for value, limit in pairs):
                mark = "  *"
            elif four != limits and all(value <= limit for value, limit in pairs):
                mark = "  +"
        print(f"{titles[name]:<{width}}   {cells}{mark}")


def print_worst(results: Results, count: int) -> None:
    """The cells in which ours is farthest from the best."""
    for name in OURS[:2]:
        for measure in MEASURES:
            found = regrets(results, name, measure)
            print(f"\nWorst cells of {TABLE[name].title}, {measure}:")
            for cell in sorted(found, key=lambda key: -found[key])[:count]:
                print(f"  {number(found[cell]):>7}  {cell:<36} best: {best_of(results[cell], measure)}")


def print_cells(results: Results) -> None:
    """Seconds, where the mean work is one second on one thread."""
    for cell, outcomes in results.items():
        print(f"{cell:<48}{'mean s':>10}{'p99 s':>10}")
        for name, outcome in sorted(outcomes.items(), key=lambda item: item[1].mean):
            print(f"  {TABLE[name].title if name in TABLE else name:<46}{outcome.mean:>10.4f}{outcome.p99:>10.4f}")
        print()


def plot(found: Mapping[str, Mapping[str, Regret]], path: str, title: str) -> None:
    """Geometric mean and worst cell of each policy on a logarithmic axis."""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "policy"  # the same bytes for the same numbers
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 0.36 * len(found) + 1.4), sharey=True)
    names = list(found)[::-1]
    for axis, measure in zip(axes, MEASURES, strict=True):
        for y, name in enumerate(names):
            color = "tab:blue" if name in OURS else "tab:gray"
            row = found[name][measure]
            axis.plot((row.average, row.worst), (y, y), color=color, linewidth=2)
            axis.plot(row.average, y, "o", color=color)
            axis.plot(row.worst, y, "|", color=color, markersize=10, markeredgewidth=2)
        axis.set_xscale("log")
        axis.set_xlim(left=0.95)
        axis.set_xlabel(f"regret in {'mean latency' if measure == 'mean' else measure}")
        axis.grid(axis="x", alpha=0.3)
    axes[0].set_yticks(range(len(names)), [TABLE[name].title for name in names])
    figure.suptitle(f"{title}; dot: geometric mean, bar: worst cell", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)


def fail(message: str) -> NoReturn:
    print(f"policy_simulation: {message}", file=sys.stderr)
    raise SystemExit(2)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of the random calls (default: 1)")
    parser.add_argument("--quick", action="store_true", help="a fifth of the cells, a fifth of the calls")
    parser.add_argument("--full", action="store_true", help="every law of work in every cell: three times the cells")
    parser.add_argument(
        "--cell", metavar="PATTERN", action="append", help="only cells like this, e.g. '64/*/closed2/*'"
    )
    cores = ",".join(map(str, BUDGETS))
    parser.add_argument("--cores", metavar="N,N", default=cores, help=f"sizes of the budget (default: {cores})")
    parser.add_argument("--list-cells", action="store_true", help="print the names of the cells and stop")
    parser.add_argument(
        "--variants", action="store_true", help="also our rule with one thing changed; a fifth of the calls"
    )
    parser.add_argument("--worst", type=int, default=6, metavar="N", help="how many worst cells to list (default: 6)")
    parser.add_argument("--json", metavar="FILE", help="write every figure there")
    parser.add_argument("--plot", metavar="FILE", help="draw the table, .svg or .png; needs matplotlib")
    options = parser.parse_args(arguments)
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        fail("--plot needs matplotlib: python -m pip install matplotlib")
    for path in filter(None, (options.json, options.plot)):
        if not Path(path).absolute().parent.is_dir():
            fail(f"no such directory: {Path(path).parent}")
    try:
        budgets = [int(size) for size in options.cores.split(",")]
    except ValueError:
        budgets = []
    if not budgets or not all(2 <= size <= 1024 for size in budgets):
        fail(f"--cores {options.cores}: not numbers from 2 to 1024 with commas between")
    every = (all_cells if options.full or options.cell else default_cells)(budgets)
    if options.quick and not options.cell:
        every = every[::5]  # still every budget, curve, pattern and law
    patterns = options.cell or ["*"]
    options.cells = [cell for cell in every if any(fnmatch.fnmatchcase(cell.name, pattern) for pattern in patterns)]
    if not options.cells:
        fail(f"no cell matches {' or '.join(patterns)}; --list-cells prints their names")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.list_cells:
        print("\n".join(cell.name for cell in options.cells))
        return 0
    extra = variants() if options.variants else {}
    few = options.quick or options.variants
    results = run_cells(options.cells, extra, options.seed, few)
    if len(results) <= 6:
        print_cells(results)
    calls = "400 + 4 x cores" if few else "2000 + 16 x cores"
    print(f"{len(results)} cell{'s' * (len(results) > 1)} of {calls} calls, seed {options.seed}\n")
    found = summary(results, TABLE)
    print_summary(found, {name: entry.title for name, entry in TABLE.items()})
    for known in (False, True) if extra else ():
        base = "ours-top" if known else "ours"
        names = [base, *(name for name, entry in extra.items() if bool(entry.knows_top) == known)]
        titles = {base: TABLE[base].title, **{name: extra[name].title for name in names[1:]}}
        print(f"\nOur rule varied, top {'known' if known else 'unknown'} (*: better in all four, +: nowhere worse)")
        print_summary(summary(results, names), titles, base)
    if options.worst:
        print_worst(results, options.worst)
    print("\nAgainst queueing theory:")
    for title, exact, simulated in theory(options.seed, THEORY_CALLS):
        print(f"  {title:<58} exact {exact:.3f}  simulated {simulated:.3f}  {100 * (simulated / exact - 1):+.1f} %")
    if options.json:
        record: dict[str, Any] = {
            "seed": options.seed,
            "calls": calls,
            "regret": {n: {m: r._asdict() for m, r in row.items()} for n, row in found.items()},
            "cells": {c: {n: o._asdict() for n, o in outcomes.items()} for c, outcomes in results.items()},
        }
        Path(options.json).write_text(json.dumps(record, indent=1), encoding="utf-8")
    if options.plot:
        plot(found, options.plot, f"{len(results)} cells, seed {options.seed}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader, head for example, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
