"""What a trace is like: lengths, token-slots, burstiness; and its joint length histogram.

Figures that a trace does not define (the rate where no time passes, a correlation with a
constant) are None. Token-slots are exact: whole numbers of any size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from mcflow.errors import InputError
from mcflow.outputs import replacing
from mcflow.workload.files import COLUMNS
from mcflow.workload.lengths import LONGEST, LengthLaw
from mcflow.workload.trace import Trace

#: Quantiles shown, in per cent, between the smallest and the largest.
PERCENTILES = (25, 50, 75, 90, 95, 99)

#: Windows of the index of dispersion, in slots (seconds).
WINDOWS = (1, 10, 60)

#: Parts of the span that the rate is given in.
PARTS = 60

#: A histogram's means of l, o and w may be off by so much.
TOLERANCE = 0.01

#: Geometric bins from one length to its double, where the search for enough of them starts.
FIRST_BINS = 4


def work(trace: Trace) -> np.ndarray:
    """Token-slots ``w = l o + o (o + 1) / 2`` of each request, exactly.

    Returns
    -------
    ndarray, shape (n,)
        int64, or Python integers (dtype object) where one is beyond 2^63.
    """
    longest, most = int(trace.prompt.max()), int(trace.output.max())
    fits = longest * most + most * (most + 1) < 2**63
    l, o = (column if fits else column.astype(object) for column in (trace.prompt, trace.output))  # noqa: E741
    total: np.ndarray = l * o + o * (o + 1) // 2
    return total


def summarise(trace: Trace) -> dict[str, Any]:
    """Figures of a trace as plain values, fit for JSON.

    Parameters
    ----------
    trace : Trace

    Returns
    -------
    dict
        ``rows`` kept, ``dropped`` by reason; ``prompt``, ``output`` and ``work`` with mean and
        quantiles; ``largest_total`` (l + o), ``spearman``; ``span``, ``rate``, ``gap_cv``, ``dispersion``
        by length of window, ``rate_windows``. Undefined figures are None.
    """
    unit = None if trace.unit is None else "slot" if trace.unit == "slot" else "s"
    return {
        "file": trace.source,
        "format": trace.format,
        "time_unit": unit,
        "length_unit": trace.length_unit,
        "rows": len(trace),
        "dropped": dict(trace.dropped),
        "prompt": spread(trace.prompt),
        "output": spread(trace.output),
        "work": spread(work(trace)),
        "largest_total": int((trace.prompt + trace.output).max()),
        "spearman": spearman(trace.prompt, trace.output),
        "span": _finite(trace.span),
        "rate": _finite(trace.rate),
        "gap_cv": gap_cv(trace.arrived),
        "dispersion": {str(width): dispersion(trace.arrived, width) for width in WINDOWS},
        "rate_windows": rate_windows(trace.arrived),
        "notices": list(trace.notices),
    }


def spread(values: np.ndarray) -> dict[str, int | float]:
    """Mean, smallest, quantiles (linear between neighbours) and largest of whole numbers; exact, then rounded."""
    ordered = np.sort(values)
    result: dict[str, int | float] = {"mean": float(mean(values)), "min": int(ordered[0])}
    for percent in PERCENTILES:
        at = Fraction(percent * (len(ordered) - 1), 100)
        low = int(ordered[math.floor(at)])
        value = low + (at - math.floor(at)) * (int(ordered[math.ceil(at)]) - low)
        result[f"p{percent}"] = int(value) if value.denominator == 1 else float(value)
    return result | {"max": int(ordered[-1])}


def mean(values: np.ndarray) -> Fraction:
    """Mean of whole numbers >= 0, exactly."""
    fits = values.dtype != object and int(values.max()) * len(values) < 2**63
    return Fraction(int(values.sum()) if fits else sum(values.tolist()), len(values))


def spearman(prompt: np.ndarray, output: np.ndarray) -> float | None:
    """Rank correlation; None where one of the two does not vary."""
    from scipy.stats import rankdata

    if (prompt == prompt[0]).all() or (output == output[0]).all():
        return None
    return min(1.0, max(-1.0, float(np.corrcoef(rankdata(prompt), rankdata(output))[0, 1])))


def gap_cv(arrived: np.ndarray | None) -> float | None:
    """Coefficient of variation of the gaps between arrivals (Poisson: 1); None below two gaps or without time."""
    span = _span(arrived)
    if arrived is None or span is None or len(arrived) < 3:
        return None
    gaps = np.diff(arrived) / span  # their mean is 1 / (n - 1)
    return float(gaps.std(ddof=1) * len(gaps))


def dispersion(arrived: np.ndarray | None, width: float) -> float | None:
    """Variance over mean of the counts in whole windows from the first arrival (Poisson: 1).

    None below two whole windows, or where they hold nobody.
    """
    span = _span(arrived)
    if arrived is None or span is None or span / width < 2 or span / width >= 2**53:
        return None
    whole = int(span / width)
    window = np.floor((arrived - arrived[0]) / width).astype(np.int64)
    # Windows with nobody in them are counted and not stored: there may be very many.
    counts = np.unique(window[window < whole], return_counts=True)[1]
    total, squares = int(counts.sum()), sum(int(count) ** 2 for count in counts)
    return float(Fraction(squares * whole - total**2, total * (whole - 1)))


def rate_windows(arrived: np.ndarray | None, parts: int = PARTS) -> dict[str, Any] | None:
    """Rate in equal parts of the span: ``width`` of a part and ``rates`` (requests a slot or second).

    None without times, where no time passes, or more or less of it than could be drawn.
    """
    span = _span(arrived)
    if arrived is None or span is None or not 1e-100 < span / parts < 1e100:
        return None
    part = np.minimum((arrived - arrived[0]) / (span / parts), parts - 1).astype(np.int64)
    return {"width": span / parts, "rates": (np.bincount(part, minlength=parts) / (span / parts)).tolist()}


def _span(arrived: np.ndarray | None) -> float | None:
    """Time from first to last arrival, None where there is none that can be divided by."""
    if arrived is None:
        return None
    span = float(arrived[-1] - arrived[0])
    return span if 0 < span < math.inf else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True, eq=False)
class Fit:
    """A joint histogram of a trace's lengths.

    Attributes
    ----------
    law : LengthLaw
        Cells: closed ranges of prompt and output with the number of rows in them.
    rows_work, law_work : float
        E[w] of the rows and of the histogram, in token-slots.
    """

    law: LengthLaw
    rows_work: float
    law_work: float


def fit(trace: Trace) -> Fit:
    """Joint histogram of prompts and outputs with E[l], E[o] and E[w] within 1 % of the rows'.

    Bins are geometric, so that short lengths have one each, and doubled in number until the means
    are met. A cell is cut down to the lengths that occur in it.

    Parameters
    ----------
    trace : Trace

    Returns
    -------
    Fit

    Raises
    ------
    InputError
        If a length is beyond what a law may hold.
    """
    for name, column in (("prompt", trace.prompt), ("output", trace.output)):
        at = int(column.argmax())
        if column[at] > LONGEST:
            place = f"{trace.source}: row {int(trace.row[at]) + 1}"
            told = f"{name} {column[at]}: a length histogram holds lengths up to {LONGEST}; leave the row out"
            raise InputError(told, where=place)
    rows_work = mean(work(trace))
    means = [float(value) for value in (mean(trace.prompt), mean(trace.output), rows_work)]
    bins = FIRST_BINS
    while True:
        law = _histogram(trace, bins)
        found = (law.mean_prompt, float(law.mean_output), float(law.mean_workload))
        off = max(abs(a / b - 1) for a, b in zip(found, means, strict=True))
        if off <= TOLERANCE or law.points:
            return Fit(law, float(rows_work), float(law.mean_workload))
        bins *= 2


def _histogram(trace: Trace, bins: int) -> LengthLaw:
    """Cells of `bins` geometric bins from a length to its double, as far as they are occupied."""
    low, high = (np.floor(bins * np.log2(column)).astype(np.int64) for column in (trace.prompt, trace.output))
    order = np.lexsort((high, low))
    prompt, output, low, high = trace.prompt[order], trace.output[order], low[order], high[order]
    first = np.flatnonzero(np.r_[True, (np.diff(low) != 0) | (np.diff(high) != 0)])
    count = np.diff(np.r_[first, len(order)])
    return LengthLaw(
        np.minimum.reduceat(prompt, first),
        np.maximum.reduceat(prompt, first),
        np.minimum.reduceat(output, first),
        np.maximum.reduceat(output, first),
        count.astype(np.int64),
        source=trace.source,
    )


def write_fit(fitted: Fit, target: Path) -> None:
    """Write a histogram as `mcflow.workload.files.read_histogram` reads it, with a comment of its origin.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    law = fitted.law
    cells = np.column_stack([law.prompt_min, law.prompt_max, law.output_min, law.output_max, law.weight])
    source = " ".join(Path(law.source).name.split()).encode("utf-8", "replace").decode()
    with replacing(target) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.write(f"# Joint histogram of prompt and output lengths of {source}: {law.weight.sum()} rows with\n")
        file.write(f"# E[w] {fitted.rows_work:.10g}, this histogram {fitted.law_work:.10g}. Closed ranges.\n")
        file.write(",".join(COLUMNS) + "\n")
        file.writelines(",".join(map(str, row)) + "\n" for row in cells.tolist())
