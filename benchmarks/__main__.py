"""``python -m benchmarks``: run every section, print the tables, write the numbers."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numba
import numpy as np
from rich.console import Console

import mcflow
from benchmarks import against_c, against_naive, contract, importance, memory, projection, scaling, speed
from benchmarks.report import Section, cpu_name

#: Narrowest console that holds every table.
WIDTH = 120


def main() -> None:
    """Run the benchmarks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and no run of 1e8 slots")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE")
    chosen = parser.parse_args()
    command = " ".join(["python -m benchmarks", *sys.argv[1:]])
    started = time.perf_counter()
    console = Console(width=max(WIDTH, Console().width))
    about = {
        "command": command,
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "numba": numba.__version__,
        "numpy": np.__version__,
        "mcflow": f"{mcflow.__version__} (sources {mcflow.source_hash()})",
    }
    console.print(f"{command}  on {about['cpu']}, {about['cores']} cores, load {about['load']:.1f}", highlight=False)
    console.print(f"mcflow {about['mcflow']}, Python {about['python']}, Numba {numba.__version__}\n", highlight=False)
    rounds = 6 if chosen.quick else 15
    sections: tuple[Callable[[], Section], ...] = (
        partial(speed.run, 2 * rounds),
        partial(against_naive.run, rounds),
        partial(against_c.run, rounds),
        partial(scaling.run, 2 * rounds),
        partial(memory.run, chosen.quick),
        partial(contract.run_time, rounds),
        partial(contract.start, 3),
        partial(projection.run, rounds),
        partial(importance.run, 1),
    )
    numbers = {}
    for run in sections:
        section = run()
        section.show(console)
        numbers[section.key] = section.numbers
    seconds = time.perf_counter() - started
    console.print(
        f"{seconds:.0f} s; processor time, best of {rounds} or more alternating rounds; repeat with: {command}",
        highlight=False,
    )
    if chosen.json:
        chosen.json.write_text(json.dumps({**about, "rounds": rounds, "seconds": seconds, **numbers}, indent=2) + "\n")


if __name__ == "__main__":
    main()
