"""Tasks -> results in whatever order they come: joblib over processes, threads or Dask."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from mcflow.errors import InputError, WorkerLost
from mcflow.tasks import Task, warm_up, work

BACKENDS = {"loky": "loky", "threads": "threading", "dask": "dask"}

#: Tasks shorter than this (seconds) are handed out several at a time.
SHORT = 0.02

#: Seconds without any result after which a Dask run is given up for lost.
DASK_PATIENCE = 900.0


def fan_out(tasks: list[Task], jobs: int, backend: str, scheduler: str | None) -> Iterator[tuple[Task, np.ndarray]]:
    """Results in whatever order they come.

    Raises
    ------
    WorkerLost
        If a worker was killed.
    """
    from joblib import Parallel, delayed, parallel_config
    from joblib.externals.loky import get_reusable_executor
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    short = warm_up(tasks) < SHORT
    options: dict[str, Any] = {"return_as": "generator_unordered", "batch_size": "auto" if short else 1}
    if backend == "dask":
        client = _dask_client(jobs, scheduler)
        with client, parallel_config("dask"):
            yield from Parallel(timeout=DASK_PATIENCE, **options)(delayed(work)(task) for task in tasks)
        return
    if jobs == 1 and backend == "loky":
        yield from map(work, tasks)
        return
    orphans = backend == "loky"
    parallel = Parallel(n_jobs=jobs, backend=BACKENDS[backend], **options)
    try:
        yield from parallel(delayed(work)(task, orphans) for task in tasks)
    except TerminatedWorkerError as error:
        get_reusable_executor().shutdown(wait=True, kill_workers=True)
        raise WorkerLost(f"a worker was killed: {str(error).splitlines()[0]}") from error


def _dask_client(jobs: int, scheduler: str | None) -> Any:
    try:
        from distributed import Client
    except ImportError:
        raise InputError("needs the extra dask: pip install 'mcflow[dask]'", where="--backend dask") from None
    try:
        if scheduler is not None:
            return Client(scheduler, timeout=30)
        workers = os.cpu_count() if jobs == -1 else jobs
        return Client(n_workers=workers, threads_per_worker=1, dashboard_address=None)
    except (OSError, ValueError, TimeoutError) as error:
        raise InputError(f"no Dask scheduler there: {error}", where="--scheduler") from None
