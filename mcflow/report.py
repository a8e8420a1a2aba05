"""Tables on the terminal: numbers with their uncertainty, one table a policy."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mcflow import estimate
from mcflow.engine.state import OVERFLOWED
from mcflow.schema import MEASURED, OWN_DIMS, VARIABLES

if TYPE_CHECKING:
    import xarray as xr

    from mcflow.splitting import Splitting
    from mcflow.stability import Judgement
    from mcflow.tune import Tuning

#: Columns of `mcflow show` where there is an exact law to compare with, and where there is none.
AGAINST_THEORY = (
    "overflow_probability", "overflow_exact", "bound_chernoff", "bound_hoeffding", "bound_hoeffding_paper",
    "latency_mean", "rejected",
)  # fmt: skip
WITHOUT_THEORY = (
    "overflow_probability", "request_throughput", "latency_mean", "latency_p95", "backlog_slope", "usage_peak",
    "rejected",
)  # fmt: skip
DRAINED = (
    "latency_mean", "latency_p95", "request_throughput", "token_throughput_completed", "unfinished",
    "overflow_probability", "evictions_per_request", "rejected",
)  # fmt: skip

HEADS = {
    "overflow_probability": "P(overflow)",
    "overflow_exact": "exact (saturated)",
    "bound_chernoff": "Chernoff",
    "bound_bernstein": "Bernstein",
    "bound_hoeffding": "Hoeffding",
    "bound_hoeffding_paper": "paper's form",
    "request_throughput": "requests/{slot}",
    "token_throughput_completed": "tokens/{slot}",
    "latency_mean": "latency, {slots}",
    "latency_p95": "p95, {slots}",
    "backlog_slope": "backlog/{slot}",
    "ttft_mean": "TTFT, {slots}",
    "ttft_p95": "TTFT p95, {slots}",
    "tpot_mean": "TPOT, {slots}",
    "tpot_p95": "TPOT p95, {slots}",
    "usage_peak": "peak, tokens",
}

VICTIM_NAMES = {
    "none": "no eviction",
    "lifo": "LIFO eviction",
    "all": "evict-all",
    "ascending": "ascending eviction",
    "beta": "beta-clearing",
    "fewest": "fewest tokens evicted first",
}

#: What a user waits for in real time, after the usual columns.
REAL_TIME = ("ttft_mean", "tpot_mean")


def head(name: str, dataset: xr.Dataset) -> str:
    """Column head of a result, with the unit of time that the dataset has."""
    seconds = dataset.attrs.get("time_unit", "slot") == "s"
    words = {"slot": "s", "slots": "s"} if seconds else {"slot": "slot", "slots": "slots"}
    return HEADS.get(name, name.replace("_", " ")).format(**words)


NOTHING_STEADY = "no steady state"


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the command line: a reader that goes away is no failure."""
        raise BrokenPipeError


def console(stream: Any = None) -> Console:
    """A console that does not fold tables when the output is a file."""
    stream = sys.stdout if stream is None else stream
    return _Console(file=stream, width=None if stream.isatty() else 5000, highlight=False)


def with_error(value: float, half: float) -> str:
    """``0.05565 ± 0.00012``: two digits of the half width decide the digits of the value."""
    if math.isnan(value):
        return "-"
    if math.isnan(half):
        return f"{value:.4g}"
    if half == 0:
        return f"{value:.6g}"
    digits = 1 - math.floor(math.log10(half))
    if max(abs(value), half) < 1e-3:
        power = math.floor(math.log10(max(abs(value), half)))
        scale = 10.0**power
        digits = max(digits + power, 0)
        return f"({value / scale:.{digits}f} ± {half / scale:.{digits}f})e{power:+03d}"
    return f"{value:.{max(digits, 0)}f} ± {half:.{max(digits, 0)}f}"


def varying(dataset: xr.Dataset) -> list[str]:
    """Axes with more than one value, in order."""
    return [str(d) for d in dataset.sizes if d not in OWN_DIMS and dataset.sizes[d] > 1]


def _with_control(dataset: xr.Dataset, summary: xr.Dataset, names: list[str]) -> xr.Dataset:
    """The summary with estimates adjusted by the offered load, and by how much their variance fell."""
    adjusted = {}
    for name in names:
        if VARIABLES[name] in MEASURED and name != "offered_usage":
            found = estimate.controlled(dataset, name)
            known = found["reduction"].notnull()
            adjusted[name] = summary[name].where(~known, found["estimate"])
            half = f"{name}_half_width"
            adjusted[half] = summary[half].where(~known, found["half_width"])
            adjusted[f"{name}_reduction"] = found["reduction"]
    return summary.assign(adjusted)


def tables(dataset: xr.Dataset, columns: list[str] | None = None, control: bool = False) -> list[Table]:
    """One table a policy: a row a grid point.

    Parameters
    ----------
    dataset : xarray.Dataset
        As `mcflow.store.load` returns it.
    columns : list of str, optional
        Names of `mcflow.schema`; by default overflow against theory, or, where there is no exact
        law, throughput, latency and drift.
    control : bool
        Adjust estimates by the offered load (`mcflow.estimate.controlled`), with the factor by which their
        variance fell.
    """
    summary = estimate.estimates(dataset)
    axes = [str(d) for d in dataset.sizes if d not in OWN_DIMS]
    shown_axes = varying(dataset) or axes
    usual: tuple[str, ...] = AGAINST_THEORY if bool(dataset["overflow_exact"].notnull().all()) else WITHOUT_THEORY
    usual = DRAINED if dataset.attrs.get("drain", 0) else usual
    usual = (*usual, *REAL_TIME) if dataset.attrs.get("time_unit", "slot") == "s" else usual
    silent = ("rejected", "unfinished") if dataset.attrs.get("drain", 0) else ("rejected",)
    chosen = columns or [name for name in usual if name not in silent or bool((dataset[name] > 0).any())]
    summary = _with_control(dataset, summary, list(chosen)) if control else summary
    if dataset.sizes["policy"] > 1 and not varying(dataset):
        return [_one_point(dataset, summary, chosen)]
    result = []
    for at, label in enumerate(dataset["policy"].values.tolist()):
        point = dataset.isel(policy=at)
        supply = str(point["supply"].item())
        title = f"{escape(label)}: {point['policy_name'].item()}"
        title += ", endless supply" if supply == "endless" else ""
        title += f", {VICTIM_NAMES[str(point['victims'].item())]}"
        gate = str(point["gate"].item()) if "gate" in point.coords else "none"
        title += "" if gate == "none" else f", behind an activation budget ({gate})"
        table = Table(title=title, title_justify="left", title_style="bold")
        for axis in shown_axes:
            table.add_column(axis, justify="right", no_wrap=True)
        for name in chosen:
            table.add_column(head(name, dataset), justify="right", no_wrap=True)
        table.add_column("state", no_wrap=True)
        for index in np.ndindex(*(dataset.sizes[axis] for axis in axes)):
            cell = dict(zip(axes, index, strict=True))
            row = summary.isel(policy=at, **cell)
            inputs = point.isel(**cell)
            state = str(row["stability"].item())
            cells = [f"{dataset[axis].values[cell[axis]]:.6g}" for axis in shown_axes]
            cells += [_cell(name, row, inputs, state) for name in chosen]
            table.add_row(*cells, state or "missing")
        result.append(table)
    return result


def _one_point(dataset: xr.Dataset, summary: xr.Dataset, names: list[str]) -> Table:
    """A row a policy, where the grid is a single point."""
    at = {str(axis): 0 for axis in dataset.sizes if axis not in OWN_DIMS}
    where = ", ".join(f"{axis} = {dataset[axis].values[0]:.6g}" for axis in at)
    title = escape(str(dataset.attrs["name"])) + (f": {where}" if where else "")
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in ["policy", *(head(name, dataset) for name in names), "state"]:
        table.add_column(column, justify="left" if column in ("policy", "state") else "right", no_wrap=True)
    for i, label in enumerate(dataset["policy"].values.tolist()):
        row, inputs = summary.isel({"policy": i, **at}), dataset.isel({"policy": i, **at})
        state = str(row["stability"].item())
        table.add_row(escape(label), *(_cell(name, row, inputs, state) for name in names), state or "missing")
    return table


def _cell(name: str, row: xr.Dataset, inputs: xr.Dataset, state: str) -> str:
    if VARIABLES[name] not in MEASURED:
        value = float(inputs[name])
        return "-" if math.isnan(value) else f"{value:.4g}"
    if estimate.steady(name) and state in estimate.NO_STEADY_STATE:
        return NOTHING_STEADY if name == "overflow_probability" else "-"
    if state == estimate.SATURATED and name.startswith(("latency", "waiting", "backlog")):
        return "-"  # an endless supply has no queue
    value, half = float(row[name]), float(row[f"{name}_half_width"])
    if name == "overflow_probability":
        limit = float(row["overflow_probability_limit"])
        if not math.isnan(limit):
            return f"< {limit:.2g} (none seen)"
        if row["overflow_few"].item():
            low, high = (float(row[f"overflow_probability_{end}"]) for end in ("low", "high"))
            return f"{value:.2g} ({low:.2g} to {high:.2g}) *"
    gain = float(row.get(f"{name}_reduction", math.nan))
    return with_error(value, half) + ("" if math.isnan(gain) else f" (×{gain:.3g})")


def versus_table(dataset: xr.Dataset, label: str, columns: list[str] | None = None) -> Table:
    """Paired differences to one policy: a row a policy and grid point, with intervals."""
    names = columns or ["latency_mean", "latency_p95", "request_throughput", "token_throughput_completed"]
    axes = [str(d) for d in dataset.sizes if d not in OWN_DIMS]
    shown = varying(dataset)
    table = Table(title=f"differences to {escape(label)}, paired", title_justify="left", title_style="bold")
    for title in ["policy", *shown, *(head(name, dataset) for name in names), "variance reduction"]:
        table.add_column(title, justify="left" if title == "policy" else "right", no_wrap=True)
    results = [estimate.versus(dataset, label, name) for name in names]
    for policy in results[0]["policy"].values.tolist():
        for index in np.ndindex(*(dataset.sizes[axis] for axis in axes)):
            cell = dict(zip(axes, index, strict=True))
            cells = [result.sel(policy=policy).isel(**cell) for result in results]
            table.add_row(
                escape(policy),
                *(f"{dataset[axis].values[cell[axis]]:.6g}" for axis in shown),
                *(with_error(float(item["difference"]), float(item["half_width"])) for item in cells),
                _finite(float(cells[0]["reduction"])),
            )
    return table


def _finite(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "-"


def notes(dataset: xr.Dataset, control: bool = False) -> list[str]:
    """What a reader of the table has to know."""
    states = estimate.stability(dataset)
    result = ["± is the half width of a 95 % Student t interval over replications."]
    if control:
        result.append(
            "× is how many times smaller the variance is with the offered load as control variate; "
            "without it: no load of known mean (endless supply, arrivals of a trace, real time, drained runs)."
        )
    result += _precision_lines(dataset)
    result += _warmup_lines(dataset, states)
    if dataset.attrs.get("drain", 0):
        cut = bool((dataset["unfinished"] > 0).any())
        result.append(
            "Latency is that of all requests, served to the last"
            + ("; unfinished is at the horizon, as all the rest." if cut else ".")
        )
    if "hindsight_bound" in dataset:
        result += _hindsight_lines(dataset)
    unstable = int((states == estimate.UNSTABLE).sum())
    if unstable:
        result.append(
            f"{unstable} point(s) are unstable: the line grows without end, "
            "so no steady-state probability or latency exists there."
        )
    stuck = int(states.isin([estimate.LIVELOCK, estimate.BLOCKED]).sum())
    if stuck:
        result.append(f"{stuck} point(s) ended in livelock or blocked: figures are those up to that slot.")
    undecided = int((states == estimate.UNDECIDED).sum())
    if undecided:
        result.append(
            f"{undecided} point(s) are undecided: more slots or replications would tell whether the line grows."
        )
    few = int(estimate.few_events(dataset).sum())
    if few:
        result.append(
            f"* {few} point(s) saw overflow in few replications (fewer than {estimate.FEW}, not all): "
            "95 % interval of a model of clusters, not t."
        )
    if bool((states == "").any()):
        result.append("Points marked missing are not done yet; the same command continues.")
    return result


def _precision_lines(dataset: xr.Dataset) -> list[str]:
    """How many replications the points took that were to be precise, and which are not."""
    rule = json.loads(dataset.attrs.get("replications", "0"))
    if not isinstance(rule, dict):
        return []
    until = rule["until"]
    values = dataset[until["metric"]].where(dataset["slots"] >= 0)
    count = values.notnull().sum("replication")
    done = count > 0
    if not bool(done.any()):
        return []
    reached = estimate.half_width(values) <= until["relative"] * np.abs(values.mean("replication"))
    missed = int((done & ~reached).sum())
    took = f"{int(count.where(done).min())} to {int(count.max())}"
    line = (
        f"Replications until the half width of {until['metric']} is {100 * until['relative']:g} % of its mean: {took}."
    )
    return [line, f"{missed} point(s) did not get there in {until['most']}."] if missed else [line]


def _warmup_lines(dataset: xr.Dataset, states: xr.DataArray) -> list[str]:
    """Whether the warm-up was as long as the MSER rule asks for, where there is a steady state."""
    if "warmup_mser" not in dataset:
        return []
    asked = dataset["warmup_mser"].where(~states.isin(estimate.NO_STEADY_STATE))
    judged = int(asked.notnull().sum())
    if not judged:
        return []
    given = dataset["warmup"]
    least, most = int(given.min()), int(given.max())
    span = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    rule = {"auto": "automatic", "mser": "by MSER on pilots"}.get(str(dataset.attrs.get("warmup")), "as asked for")
    longer = int((asked > given).sum())
    line = f"Warm-up {span} slots ({rule}); MSER on the mean path asks for {int(asked.min()):,} to {int(asked.max()):,}"
    return [line + (f", more at {longer} of {judged} point(s): run.warmup." if longer else ".")]


def judgement_table(judgements: tuple[Judgement, ...], time_unit: str) -> Table:
    """Rates, what they were judged, and the drift that decided."""
    table = Table()
    for title in (f"rate, requests/{time_unit}", "state", f"drift of the line, requests/{time_unit}", "slots a run"):
        table.add_column(title, justify="left" if title == "state" else "right", no_wrap=True)
    for j in judgements:
        state = j.state if j.reason == "drift" else f"{j.state} ({j.reason})"
        table.add_row(f"{j.rate:.6g}", state, with_error(j.drift, j.half_width), f"{j.slots:,}")
    return table


def splitting_table(found: Splitting) -> Table:
    """Levels of a splitting, and the share of the paths that got from each to the next."""
    table = Table(caption="level: roughly the logarithm of the chance to overflow", caption_justify="left")
    for title in ("stage", "from level", "share that gets to the next"):
        table.add_column(title, justify="right", no_wrap=True)
    for number, (at, share) in enumerate(zip(found.levels, found.shares, strict=True), 1):
        table.add_row(str(number), "overflow" if at == OVERFLOWED else f"{at:.4g}", f"{share:.3f}")
    return table


def tuning_table(tuning: Tuning, parameter: str, objective: str) -> Table:
    """Candidates of a race, with what became of each."""
    table = Table(title=f"{objective} by {parameter}", title_justify="left", title_style="bold")
    for title in (parameter, objective, "replications", "state"):
        table.add_column(title, justify="left" if title == "state" else "right", no_wrap=True)
    for c in tuning.candidates:
        shown = (
            with_error(c.mean, c.half_width) if c.state.startswith(("racing", "winner", "runner", "dropped")) else "-"
        )
        table.add_row(f"{float(c.value):g}", shown, str(len(c.results)), c.state)
    return table


def tuning_notes(tuning: Tuning, parameter: str) -> list[str]:
    """The winner, its lead, and what the exact law would have said."""
    lines = []
    if tuning.winner is None:
        lines.append(
            "no candidate is shown to do: each is unstable, above the limit, or ran for too few slots to be sure "
            "(--slots, --replications, --drain)"
        )
    else:
        lines.append(f"winner: {parameter} = {float(tuning.winner.value):g}")
    if not math.isnan(tuning.lead):
        lines.append(f"lead over the runner-up, paired: {with_error(tuning.lead, tuning.lead_half_width)}")
    if tuning.guided is not None:
        lines.append(
            f"by the exact law of the saturated process, P(overflow) <= {tuning.limit:g} up to "
            f"{parameter} = {float(tuning.guided):g}"
        )
    return lines


def _hindsight_lines(dataset: xr.Dataset) -> list[str]:
    """The certified bound at each combination of axis values, on the replications it was made for."""
    bound, best = dataset["hindsight_bound"], dataset["hindsight_best"]
    if not bound.sizes.keys() - {"replication"}:
        bound, best = bound.expand_dims("all"), best.expand_dims("all")
    axes = [str(d) for d in bound.dims if d != "replication"]
    lines = []
    for index in np.ndindex(*(bound.sizes[axis] for axis in axes)):
        cell = dict(zip(axes, index, strict=True))
        low, high = bound.isel(**cell), best.isel(**cell)
        where = ", ".join(f"{axis} {bound[axis].values[i]:g}" for axis, i in cell.items() if axis in bound.coords)
        mean = with_error(float(low.mean()), float(estimate.half_width(low)))
        gap = float(((high - low) / high).mean())
        lines.append(
            f"hindsight optimum, {int(low.notnull().sum())} replications{', ' + where if where else ''}: "
            f"mean latency >= {mean}; a schedule within {100 * gap:.2g} % of it exists"
        )
    return lines


def _plain(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    return f"{value:,}" if isinstance(value, int) else f"{value:.9g}" if isinstance(value, float) else str(value)


def mapping_table(values: dict[str, Any], title: str) -> Table:
    """A two-column table of a report."""
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for name, value in values.items():
        table.add_row(name.replace("_", " "), _plain(value))
    return table


def sparkline(values: list[float], encoding: str = "utf-8") -> str:
    """A line of bars from 0 to the largest value; blank only where a value is 0."""
    bars = "▁▂▃▄▅▆▇█" if encoding.lower().startswith("utf") else ".:-=+*%#"
    top = max(values)
    return "".join(" " if not value else bars[min(int(value / top * len(bars)), len(bars) - 1)] for value in values)


def trace_tables(summary: dict[str, Any]) -> list[Table]:
    """Lengths and token-slots of a trace, then its other figures (of `mcflow.workload.summary.summarise`)."""
    words, unit = summary["length_unit"], summary["time_unit"]
    lengths = Table(title=escape(summary["file"]), title_justify="left", title_style="bold")
    lengths.add_column("", no_wrap=True)
    for name in summary["prompt"]:
        lengths.add_column(f"{name[1:]} %" if name[1:].isdigit() else name, justify="right", no_wrap=True)
    rows = {"prompt": f"prompt l, {words}", "output": f"output o, {words}", "work": f"w, {words[:-1]}-slots"}
    for name, title in rows.items():
        lengths.add_row(title, *(_short(value) for value in summary[name].values()))
    values: dict[str, Any] = {"format": summary["format"], "rows kept": summary["rows"]}
    values |= {f"rows left out, {reason}": count for reason, count in summary["dropped"].items()}
    values |= {f"largest l + o, {words}": summary["largest_total"], "rank correlation l, o": summary["spearman"]}
    if unit is not None:
        values |= {
            "span, slots" if unit == "slot" else "span, s": summary["span"],
            f"rate, requests/{unit}": summary["rate"],
            "CV of gaps (Poisson: 1)": summary["gap_cv"],
        }
        for width, value in summary["dispersion"].items():
            plural = "s" if unit == "s" else "slot" if width == "1" else "slots"
            values[f"dispersion of counts in {width} {plural} (Poisson: 1)"] = value
    shown = {name: _short(value) if isinstance(value, float) else value for name, value in values.items()}
    return [lengths, mapping_table(shown, "")]


def rate_lines(summary: dict[str, Any], encoding: str = "utf-8") -> list[str]:
    """The course of a trace's rate as a sparkline between bars, and its scale."""
    windows, unit = summary["rate_windows"], summary["time_unit"]
    if windows is None:
        return []
    rates = windows["rates"]
    each = f"{windows['width']:.4g} {'s' if unit == 's' else 'slots'}"
    return [
        f"|{sparkline(rates, encoding)}|",
        f"rate in {len(rates)} windows of {each}: {min(rates):.4g} to {max(rates):.4g} requests/{unit}",
    ]


def _short(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**12 else f"{value:.6g}"
    return f"{value:,.1f}" if 1000 <= abs(value) < 1e12 else f"{value:.4g}"
