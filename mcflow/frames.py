"""CSV files of one run, written beside their place and renamed: whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd

from mcflow.engine.state import USAGE_COLUMNS
from mcflow.errors import InputError
from mcflow.simulate import Outcome


def check_writable(target: Path | None) -> None:
    """Refuse a target that cannot be written, before any work is done.

    Raises
    ------
    InputError
        If its folder is missing or not writable, or it is a folder itself.
    """
    if target is None:
        return
    folder = target.parent
    if target.is_dir():
        raise InputError("is a folder; give a file", where=str(target))
    if not folder.is_dir():
        raise InputError(f"cannot be written: there is no folder {folder}", where=str(target))
    if not os.access(folder, os.W_OK) or (target.exists() and not os.access(target, os.W_OK)):
        raise InputError("cannot be written: permission denied", where=str(target))


def write_requests(outcome: Outcome, target: Path) -> None:
    """One row a request: id,arrival,prompt,output,activated,completed,evictions,status.

    Last activation; empty cells where a request has none.
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
    _write(table, target)


def write_usage(outcome: Outcome, target: Path) -> None:
    """One row a slot: slot,demand,usage,active,waiting,evicted (tokens, tokens, requests ...)."""
    table = pd.DataFrame(outcome.usage, columns=list(USAGE_COLUMNS))
    table.insert(0, "slot", np.arange(len(table)))
    _write(table, target)


def _or_empty(values: np.ndarray) -> pd.Series:
    return pd.Series(values, dtype="Int64").mask(pd.Series(values < 0))


def _write(table: pd.DataFrame, target: Path) -> None:
    temporary = target.with_name(target.name + ".tmp")
    try:
        table.to_csv(temporary, index=False, lineterminator="\n")
        os.replace(temporary, target)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", where=str(target)) from None
    finally:
        temporary.unlink(missing_ok=True)
