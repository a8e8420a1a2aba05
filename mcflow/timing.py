"""Iteration times from aiconfigurator's measured kernels, as a table for `mcflow.service`.

Needs the extra ``aiconfigurator``; nothing else in mcflow does. It works offline for the models whose
configuration comes with that package, and for a directory that holds a ``config.json``.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcflow.errors import InputError
from mcflow.service import COLUMNS

if TYPE_CHECKING:
    import pandas as pd

#: Short names of models as in the presets.
MODELS = {"llama-3.1-8b": "meta-llama/Meta-Llama-3.1-8B", "llama-3.1-70b": "meta-llama/Meta-Llama-3.1-70B"}

DECODES = tuple(2**i for i in range(10))
CONTEXTS = (64, 256, 1024, 4096)
PROMPTS = (0, *(2**i for i in range(5, 13)))


def build_table(
    model: str | Path,
    gpu: str,
    tensor_parallel: int = 1,
    *,
    decodes: tuple[int, ...] = DECODES,
    contexts: tuple[int, ...] = CONTEXTS,
    prompts: tuple[int, ...] = PROMPTS,
    backend: str = "vllm",
    version: str | None = None,
    file: Path | None = None,
) -> pd.DataFrame:
    """Return one iteration time for every point of a grid.

    Parameters
    ----------
    model : str or Path
        A name in `MODELS`, a Hugging Face name, or a directory with a ``config.json``.
    gpu : str
        Such as ``h100`` (the SXM board) or ``h100_sxm``.
    tensor_parallel : int
        GPUs that share the model.
    decodes, contexts, prompts : tuple of int
        Decode requests; tokens of context of each of them (kv = d times this); prompt tokens, from 0.
    backend, version : str
        Whose kernels; None is the version that the package holds current for the GPU.
    file : Path, optional
        Where to write the table as CSV, too.

    Returns
    -------
    DataFrame
        model, gpu, tensor_parallel, decode_requests, kv_tokens, prefill_tokens, milliseconds; in the
        order that `mcflow.service` reads.

    Raises
    ------
    InputError
        If the package is not installed, or does not know the model or the GPU.

    Notes
    -----
    An iteration with both kinds of work takes the package's mixed step, with the attention of the
    decode requests at their own context length. Memory is not checked.
    """
    import pandas as pd

    where = f"{model} on {tensor_parallel} x {gpu}"
    step = _engine(str(MODELS.get(str(model), model)), _board(gpu), tensor_parallel, backend, version, where)
    rows = []
    try:
        for p in sorted({0, *prompts}):
            if p > 0:
                rows.append((0, 0, p, step.predict_prefill_latency(1, p)))
            for d in sorted(decodes):
                rows += [(d, d * context, p, _milliseconds(step, d, context, p)) for context in sorted(contexts)]
    except (RuntimeError, ValueError) as error:
        raise InputError(f"aiconfigurator has no figures for this grid ({_first_line(error)})", where=where) from None
    frame = pd.DataFrame(rows, columns=list(COLUMNS.values())).round({COLUMNS["ms"]: 4})
    frame.insert(0, "model", Path(model).name)
    frame.insert(1, "gpu", _board(gpu))
    frame.insert(2, "tensor_parallel", tensor_parallel)
    if file is not None:
        frame.to_csv(file, index=False, lineterminator="\n")
    return frame


def _milliseconds(step: Any, d: int, context: int, p: int) -> float:
    """One iteration with decode requests. Their new token is the ``context``-th, so ``context - 1`` stand before it."""
    if p == 0:
        return float(step.decode_step_latency(gen_tokens=d, isl=context - 1, osl=1))
    _, shared, prefill, _ = step.mixed_step_breakdown(ctx_tokens=p, gen_tokens=d, isl=p, osl=1)
    decode = step.mixed_step_breakdown(ctx_tokens=p, gen_tokens=d, isl=context - 1, osl=1)[3]
    return float(shared + prefill + decode)


def _board(gpu: str) -> str:
    return f"{gpu}_sxm" if gpu in ("a100", "h100", "h200", "b200", "b300") else gpu


def _engine(model: str, gpu: str, degree: int, backend: str, version: str | None, where: str) -> Any:
    try:
        from aiconfigurator_core.sdk.engine import EngineHandle
    except ImportError:
        cure = "pip install mcflow[aiconfigurator]"
        raise InputError(f"building a table needs the package aiconfigurator-core: {cure}", where=where) from None
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # it reports every table that it does not use
    try:
        return EngineHandle.compile(model, gpu, backend, backend_version=version, tp_size=degree)
    except Exception as error:  # a dozen kinds, from files, downloads and the compiled core
        raise InputError(f"aiconfigurator cannot model this ({_first_line(error)})", where=where) from None
    finally:
        logging.disable(level)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
