"""The kernel with flow control and LIFO written into it: what the policy contract is held against.

The source of `mcflow.engine.kernel` is copied and each call of a hook that does something replaced
by what it does, the budget in a local variable; so the copy follows every change of the kernel.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mcflow.engine import kernel

#: Pattern -> replacement; each must be found.
WIRING = (
    (r"\bbegin\(pol,.*\)", "open_ = np.int64(draws[i, 0])"),
    (r"( +)answer = admit\(pol,.*\)", r"\1answer = ADMIT if open_ > 0 else STOP\n\1open_ -= 1"),
    (r"\bvictim\(vic, pool, t, live\[USAGE\], M, live\[ACTIVE\]\)", "(prv[NIL] if live[USAGE] > M else NIL)"),
    (r"cache=True, ", ""),
)


class KernelChangedError(Exception):
    """The kernel no longer holds the text that is to be replaced."""


def hardwired(folder: Path) -> Callable[..., Any]:
    """Return the hard-wired kernel, its source written to ``folder`` (kept until it is compiled)."""
    text = Path(kernel.__file__).read_text()
    for pattern, replacement in WIRING:
        text, found = re.subn(pattern, replacement, text)
        if not found:
            raise KernelChangedError(f"nothing in mcflow/engine/kernel.py matches {pattern}")
    path = folder / "hardwired_kernel.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    advance: Callable[..., Any] = module.advance
    return advance
