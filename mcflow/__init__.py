"""mcflow: the Monte Carlo laboratory for KV-cache-constrained LLM serving.

Importing the package sets the folder of Numba's on-disk cache and nothing else; the public
names below are loaded on first use, so that ``mcflow --help`` stays quick.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "Budget": "mcflow.budget",
    "InputError": "mcflow.errors",
    "LengthLaw": "mcflow.workload.lengths",
    "Scenario": "mcflow.simulate",
    "load": "mcflow.store",
    "run_experiment": "mcflow.sweep",
    "simulate": "mcflow.simulate",
    "theory_report": "mcflow.theory",
}
__all__ = ["__version__", *sorted(_PUBLIC)]


def source_hash() -> str:
    """Hash of the package's sources: it names the Numba cache and stands in every dataset."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _set_numba_cache() -> None:
    """Give each version of the sources a cache folder of its own.

    Numba checks only the file that holds a kernel: after an edit in another file (a policy)
    it would silently answer from the old machine code.
    """
    leaf = f"mcflow-{source_hash()}"
    own = os.environ.get("NUMBA_CACHE_DIR")
    if own and Path(own).name == leaf:  # a worker process: its parent has chosen already
        return
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    for base in (own or str(Path(home).expanduser() / "numba"), tempfile.gettempdir()):
        folder = Path(base) / leaf
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                break
        except OSError:
            continue
    os.environ["NUMBA_CACHE_DIR"] = str(folder)
    if "numba" in sys.modules:
        sys.modules["numba"].config.CACHE_DIR = str(folder)


_set_numba_cache()


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'mcflow' has no attribute {name!r}")
