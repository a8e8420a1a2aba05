"""CSV files of one run, written beside their place and renamed: whole or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from mcflow.engine.state import USAGE_COLUMNS
from mcflow.outputs import replacing
from mcflow.simulate import Outcome


def write_requests(outcome: Outcome, target: Path, detail: bool = False) -> None:
    """One row a request: id,arrival,prompt,output,activated,completed,evictions,status.

    Last activation; empty cells where a request has none. ``detail`` adds first_activated and
    first_token. Times are slots, or seconds in real time.
    """
    requests = outcome.requests
    assert requests is not None
    arrival = requests.arrival
    whole = arrival.astype(np.int64)
    table = pd.DataFrame(
        {
            "id": requests.ident,
            "arrival": whole if (whole == arrival).all() else arrival,
            "prompt": requests.prompt,
            "output": requests.output,
            "activated": _or_empty(requests.activated),
            "completed": _or_empty(requests.completed),
            "evictions": requests.evictions,
            "status": requests.status,
        }
    )
    if detail:
        table["first_activated"] = _or_empty(requests.started)
        table["first_token"] = _or_empty(requests.first)
    _write(table, target)


def write_usage(outcome: Outcome, target: Path) -> None:
    """One row a slot: slot,demand,usage,active,waiting,evicted (tokens, tokens, requests ...).

    In real time followed by start, seconds.
    """
    table = pd.DataFrame(outcome.usage, columns=list(USAGE_COLUMNS))
    table.insert(0, "slot", np.arange(len(table)))
    if outcome.timed:
        table["start"] = outcome.run.starts
    _write(table, target)


def _or_empty(values: np.ndarray) -> pd.Series:
    kind = "Float64" if values.dtype.kind == "f" else "Int64"
    return pd.Series(values, dtype=kind).mask(pd.Series(values < 0))


def _write(table: pd.DataFrame, target: Path) -> None:
    with replacing(target) as temporary:
        table.to_csv(temporary, index=False, lineterminator="\n")
