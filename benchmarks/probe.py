"""A fresh process that simulates the paper's classes: ``python -m benchmarks.probe SLOTS``.

Prints one JSON object: seconds of the imports, of the run and of the kernel in it, and peak memory
in bytes. A short run is mostly compilation, or loading from Numba's cache.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parent.parent


def peak_memory() -> int:
    """Largest resident size of this process so far, in bytes.

    Linux's own mark is reset when a process starts its program; ``ru_maxrss`` is not, and a
    child of a large parent begins with its parent's peak.
    """
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def fresh(slots: int, cache: str | None = None) -> dict[str, Any]:
    """Run this file in a process of its own, with another Numba cache folder where one is given.

    ``process`` in the answer is the time from start to exit.
    """
    environment = {**os.environ, **({"NUMBA_CACHE_DIR": cache} if cache else {})}
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.probe", str(slots)],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(f"python -m benchmarks.probe {slots} failed:\n{done.stderr[-2000:]}")
    return {**json.loads(done.stdout), "process": seconds}


def _probe(slots: int) -> None:
    start = time.perf_counter()
    from benchmarks.cases import PAPER
    from benchmarks.race import kernel_watch
    from mcflow.engine.machine import BLOCK
    from mcflow.simulate import simulate

    scenario = PAPER.scenario(slots)
    imported = time.perf_counter()
    with kernel_watch() as watch:
        simulate(scenario, block=BLOCK)
    run = time.perf_counter() - imported
    print(json.dumps({"imports": imported - start, "run": run, "kernel": watch.seconds, "peak": peak_memory()}))


if __name__ == "__main__":
    _probe(int(sys.argv[1]))
