"""The commands. Each imports what it needs when it runs, so that ``--help`` is quick."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

import mcflow
from mcflow.errors import InputError, RunError, tell

app = typer.Typer(
    help="Monte Carlo laboratory for KV-cache-constrained LLM serving.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

traces = typer.Typer(help="Look at request traces, and fit length histograms to them.")
app.add_typer(traces, name="trace")

DEFAULT_SLOTS = 100_000

INTERRUPTED = "interrupted; what is finished is saved, the same command goes on from there"

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
Dataset = Annotated[Path, typer.Argument(help="Dataset, RESULTS.zarr.", show_default=False)]
Capacity = Annotated[int, typer.Option("--capacity", help="KV cache M, in tokens.", show_default=False)]
Service = Annotated[
    str,
    typer.Option(help="Iteration times: unit, a preset (mcflow services), PRESET:table, or a CSV file of points."),
]
TraceFile = Annotated[Path, typer.Argument(help="Request trace, CSV or JSONL, gz or not.", show_default=False)]
TimeUnit = Annotated[str | None, typer.Option(help="Unit of the trace's times: slot, s, ms, us or ns.")]
Start = Annotated[float | None, typer.Option(help="Leave out what arrives before this time of the trace.")]
Rows = Annotated[int | None, typer.Option(help="Take only so many rows of the trace.")]
Accounting = Annotated[str | None, typer.Option(help="paper (l + j) or engine (l + j - 1); default: the policy's.")]
Gate = Annotated[
    list[str] | None, typer.Option(help="b=0.9 (and law=...): an activation budget in front of the policy.")
]
Seed = Annotated[int, typer.Option(help="Root seed.")]
Scale = Annotated[str, typer.Option("--service-scale", help="Factor on iteration times.")]
Workload = Annotated[
    Path | None, typer.Option("--workload", help="YAML file: what stands under workload:, numbers for axes.")
]


def main() -> None:
    """Entry point: run a command; a user's mistake is one line and exit code 2."""
    sys.exit(_run(lambda: app(standalone_mode=False)))


def _run(command: Callable[[], Any]) -> int:
    notices = logging.StreamHandler(sys.stderr)
    notices.setFormatter(logging.Formatter("mcflow: %(message)s"))
    logger = logging.getLogger("mcflow")
    logger.addHandler(notices)
    try:
        return _exit_code(command)
    finally:
        logger.removeHandler(notices)


def _exit_code(command: Callable[[], Any]) -> int:
    try:
        code = command()
        sys.stdout.flush()
    except InputError as error:
        return _say(str(error), 2)
    except RunError as error:
        return _say(str(error), 1)
    except (KeyboardInterrupt, typer.Abort):
        return _say(INTERRUPTED, 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a broken terminal
        return _say(f"{error.filename or 'output'}: {error.strerror or error}", 1)
    except Exception as error:
        # Typer's usage errors; their class is not public (some versions vendor click).
        if not hasattr(error, "format_message"):
            raise
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context is not None else ""
        return _say(" ".join(error.format_message().split()) + hint, 2)
    if code == 130:  # Typer's own answer to Ctrl-C
        return _say(INTERRUPTED, 130)
    return code if isinstance(code, int) else 0


def _say(message: str, code: int) -> int:
    print(f"mcflow: {message}", file=sys.stderr)
    return code


def _print_json(values: dict[str, Any]) -> None:
    print(json.dumps(values, allow_nan=False))


def _version(wanted: bool) -> None:
    if wanted:
        print(f"mcflow {mcflow.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def run(
    experiment: Annotated[Path, typer.Argument(help="Experiment file, see docs/experiments.md.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder of results.")] = Path("results"),
    jobs: Annotated[int, typer.Option(help="Workers; -1 for one a core.")] = -1,
    backend: Annotated[str, typer.Option(help="loky, threads or dask.")] = "loky",
    scheduler: Annotated[str | None, typer.Option(help="Address of a Dask scheduler.", show_default=False)] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE in place of the file's, e.g. run.slots=1e5.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget earlier results of this experiment.")] = False,
) -> None:
    """Run an experiment: simulate what is missing, then tables, dataset and figures."""
    from mcflow.experiment import Experiment
    from mcflow.progress import Bar
    from mcflow.sweep import run_experiment

    loaded = Experiment(experiment, set_)
    with Bar(loaded.spec.name) as bar:
        sweep = run_experiment(loaded, out, jobs=jobs, backend=backend, scheduler=scheduler, fresh=fresh, progress=bar)
    from mcflow import report, store
    from mcflow.plot import save
    from mcflow.schema import VERDICTS

    dataset = store.load(sweep.dataset)
    _show_tables(dataset, None)
    if any(figure.kind == "comparison" for figure in loaded.spec.figures) and dataset.sizes["policy"] > 1:
        report.console().print(report.versus_table(dataset, str(dataset["policy"].values[0])))
    print(f"points:  {sweep.computed} of {sweep.total} tasks computed now, the rest found in the journal")
    print(f"dataset: {sweep.dataset}")
    for figure in loaded.spec.figures:
        path = save(dataset, figure.kind, sweep.dataset, x=figure.x, y=figure.y, policies=figure.policies)
        print(f"figure:  {path}")
    overfull = int((dataset["verdict"] == VERDICTS.index("overfull")).any("replication").sum())
    if overfull:
        raise RunError(
            f"{overfull} point(s) ended early: more requests waited than memory holds; lower the rate or run.slots"
        )


@app.command()
def simulate(
    capacity: Capacity,
    policy: Annotated[str, typer.Option(help="Policy, see mcflow policies.", show_default=False)],
    param: Annotated[list[str] | None, typer.Option(help="K=V, one parameter of the policy; lists as 4,4,4.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Request trace, CSV or JSONL, gz or not.")] = None,
    workload: Workload = None,
    time_unit: TimeUnit = None,
    start: Start = None,
    rows: Rows = None,
    rate: Annotated[float | None, typer.Option(help="Scale the trace's times to this mean rate.")] = None,
    slots: Annotated[int | None, typer.Option(help="Horizon; a trace otherwise runs until drained.")] = None,
    limit: Annotated[int | None, typer.Option(help="So many requests of a workload, all served, no horizon.")] = None,
    seed: Seed = 0,
    block_size: Annotated[int, typer.Option(help="Tokens a memory block.")] = 1,
    token_budget: Annotated[
        int | None, typer.Option(help="Tokens that decoding and prefill share in an iteration (chunked prefill).")
    ] = None,
    progress: Annotated[
        str | None, typer.Option(help="reset or recompute: what eviction does to made tokens; default: the policy's.")
    ] = None,
    accounting: Accounting = None,
    victims: Annotated[
        str | None, typer.Option(help="lifo, all, none, ascending, fewest or beta; default: the policy's.")
    ] = None,
    beta: Annotated[str | None, typer.Option(help="Probability of --victims beta.")] = None,
    gate: Gate = None,
    max_new: Annotated[
        str | None, typer.Option(help="Limit on output tokens of a request: upper, 1024, or 2x for twice its output.")
    ] = None,
    service: Service = "unit",
    service_scale: Scale = "1",
    as_json: Json = False,
    requests: Annotated[Path | None, typer.Option(help="CSV: one row a request.")] = None,
    detail: Annotated[
        bool, typer.Option("--detail", help="Add first_activated and first_token to --requests.")
    ] = False,
    usage: Annotated[Path | None, typer.Option(help="CSV: one row a slot.")] = None,
) -> None:
    """Simulate one run, of a trace or of a workload."""
    from mcflow import frames, report
    from mcflow.commands import simulate_once
    from mcflow.outputs import check_outputs

    check_outputs(requests, usage, inputs=(trace, workload))
    outcome = simulate_once(
        capacity=capacity, policy=policy, param=param or [], trace=trace, workload=workload, time_unit=time_unit,
        start=start, rows=rows, rate=rate, slots=slots, default_slots=DEFAULT_SLOTS, requests=limit, seed=seed,
        block_size=block_size, token_budget=token_budget, progress=progress, accounting=accounting, victims=victims,
        gate=gate or [], max_new=max_new, service=service, service_scale=service_scale, beta=beta,
        record=requests is not None, keep_usage=usage is not None,
    )  # fmt: skip
    if requests is not None:
        frames.write_requests(outcome, requests, detail)
    if usage is not None:
        frames.write_usage(outcome, usage)
    if as_json:
        _print_json(outcome.summary())
    else:
        report.console().print(report.mapping_table(outcome.summary(), f"{policy}, M = {capacity:,} tokens"))


@app.command()
def theory(
    capacity: Capacity,
    workload: Workload = None,
    budget: Annotated[
        str | None, typer.Option(help="Mean activation budget b; one a class (4,4,4) for Algorithm 1.")
    ] = None,
    law: Annotated[str, typer.Option(help="Budget law: constant, credit, bernoulli, poisson or uniform.")] = "credit",
    importance: Annotated[
        bool, typer.Option("--importance", help="Estimate the overflow by importance sampling too.")
    ] = False,
    relative_error: Annotated[float, typer.Option(help="Relative standard error that --importance goes to.")] = 0.005,
    seed: Annotated[int, typer.Option(help="Root seed of --importance.")] = 0,
    as_json: Json = False,
) -> None:
    """Capacity, stability conditions, exact overflow law and bounds."""
    from mcflow import report
    from mcflow.commands import theory_of

    values = theory_of(
        capacity=capacity, workload=workload, budget=budget, law=law, importance=importance,
        relative_error=relative_error, seed=seed,
    )  # fmt: skip
    if as_json:
        _print_json(values)
    else:
        report.console().print(report.mapping_table(values, f"{workload}, M = {capacity:,} tokens"))


@app.command()
def stability(
    capacity: Capacity,
    policy: Annotated[str, typer.Option(help="Policy, see mcflow policies.", show_default=False)],
    param: Annotated[list[str] | None, typer.Option(help="K=V, one parameter of the policy.")] = None,
    workload: Workload = None,
    rate: Annotated[
        float | None, typer.Option(help="Judge this rate only; without it, find the largest one.", show_default=False)
    ] = None,
    tolerance: Annotated[float, typer.Option(help="Width of the result over the rate.")] = 0.005,
    longest: Annotated[int, typer.Option(help="Slots of a run at most.")] = 2_097_152,
    replications: Annotated[int, typer.Option(help="Runs a judgement.")] = 8,
    service: Service = "unit",
    service_scale: Scale = "1",
    block_size: Annotated[int, typer.Option(help="Tokens a memory block.")] = 1,
    gate: Gate = None,
    seed: Seed = 0,
    jobs: Annotated[int, typer.Option(help="Threads; -1 for one a core.")] = -1,
    as_json: Json = False,
) -> None:
    """Find the largest arrival rate that a policy sustains, by bisection, beside capacity over mean work."""
    from mcflow import report
    from mcflow.commands import stability_of

    values, judgements = stability_of(
        capacity=capacity, policy=policy, param=param or [], workload=workload, rate=rate, tolerance=tolerance,
        longest=longest, replications=replications, service=service, service_scale=service_scale,
        block_size=block_size, gate=gate or [], seed=seed, jobs=jobs,
    )  # fmt: skip
    if as_json:
        _print_json(values)
        return
    console = report.console()
    console.print(report.judgement_table(judgements, values["time_unit"]))
    console.print(report.mapping_table({k: v for k, v in values.items() if k != "judgements"}, policy))


@app.command()
def rare(
    capacity: Capacity,
    policy: Annotated[str, typer.Option(help="Policy, see mcflow policies.", show_default=False)],
    param: Annotated[list[str] | None, typer.Option(help="K=V, one parameter of the policy.")] = None,
    workload: Workload = None,
    supply: Annotated[str, typer.Option(help="arrivals, or endless: a waiting line that is never empty.")] = "arrivals",
    victims: Annotated[
        str | None, typer.Option(help="Victim rule; none: nobody is evicted. Default: the policy's.")
    ] = None,
    block_size: Annotated[int, typer.Option(help="Tokens a memory block.")] = 1,
    accounting: Accounting = None,
    gate: Gate = None,
    measure: Annotated[
        str, typer.Option(help="Level of a slot: what is to be expected from it on (ahead), or its usage.")
    ] = "ahead",
    paths: Annotated[int, typer.Option(help="Paths started at each level.")] = 512,
    slots: Annotated[int, typer.Option(help="Slots of plain simulation a replication, after as many.")] = 32_768,
    replications: Annotated[int, typer.Option(help="Independent estimates.")] = 16,
    seed: Seed = 0,
    jobs: Annotated[int, typer.Option(help="Processes; -1 for one a core.")] = -1,
    as_json: Json = False,
) -> None:
    """Estimate an overflow probability too small for plain simulation, by multilevel splitting."""
    from mcflow import report
    from mcflow.commands import rare_of
    from mcflow.splitting import splitting_report

    found = rare_of(
        capacity=capacity, policy=policy, param=param or [], workload=workload, supply=supply, victims=victims,
        block_size=block_size, accounting=accounting, gate=gate or [], measure=measure, paths=paths, slots=slots,
        replications=replications, seed=seed, jobs=jobs,
    )  # fmt: skip
    values = splitting_report(found)
    if as_json:
        _print_json(values)
        return
    console = report.console()
    console.print(report.splitting_table(found))
    shown = {k: v for k, v in values.items() if not isinstance(v, (list, tuple))}
    console.print(report.mapping_table(shown, f"{policy}, M = {capacity:,} tokens"))


@app.command()
def tune(
    capacity: Capacity,
    policy: Annotated[str, typer.Option(help="Policy, see mcflow policies.", show_default=False)],
    param: Annotated[list[str], typer.Option(help="One range, b=10:14:0.5 or b=10,12,14; others as K=V.")],
    workload: Workload = None,
    objective: Annotated[
        str, typer.Option(help="latency-mean, latency-p95, request-throughput, token-throughput or overflow.")
    ] = "latency-mean",
    slots: Annotated[int, typer.Option(help="Slots a replication.")] = 10_000,
    requests: Annotated[
        int | None, typer.Option(help="Requests a replication, all served, in place of slots.", show_default=False)
    ] = None,
    service: Service = "unit",
    service_scale: Scale = "1",
    replications: Annotated[int, typer.Option(help="At most this many replications a candidate.")] = 64,
    limit: Annotated[
        float, typer.Option(help="Overflow probability for --objective overflow and the exact law.")
    ] = 0.01,
    drain: Annotated[bool, typer.Option("--drain", help="Serve everybody after the last arrival.")] = False,
    seed: Seed = 0,
    jobs: Annotated[int, typer.Option(help="Threads; -1 for one a core.")] = -1,
    as_json: Json = False,
) -> None:
    """Find the best value of a parameter on common random numbers, dropping losers early."""
    from mcflow import report
    from mcflow.commands import tune_once
    from mcflow.tune import report as plain

    name, tuning = tune_once(
        capacity=capacity, policy=policy, param=param, workload=workload, objective=objective, slots=slots,
        requests=requests, service=service, service_scale=service_scale, replications=replications, limit=limit,
        drain=drain, seed=seed, jobs=jobs,
    )  # fmt: skip
    if as_json:
        _print_json(plain(tuning, name, objective))
        return
    console = report.console()
    console.print(report.tuning_table(tuning, name, objective))
    for line in report.tuning_notes(tuning, name):
        console.print(line)


@app.command()
def plot(
    results: Dataset,
    kind: Annotated[
        str | None,
        typer.Option(help="overflow, stability, metric, comparison, usage, map or bounds.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="PNG, PDF or SVG file.", show_default=False)
    ] = None,
    x: Annotated[str | None, typer.Option("--x", help="Axis to plot against.", show_default=False)] = None,
    y: Annotated[
        str | None,
        typer.Option("--y", help="Result to plot (kind metric), or second axis (kind map).", show_default=False),
    ] = None,
    policies: Annotated[
        str | None, typer.Option(help="Labels of the policies to draw, comma-separated.", show_default=False)
    ] = None,
) -> None:
    """Draw a figure of a dataset."""
    from mcflow import store
    from mcflow.plot import save

    labels = None if policies is None else policies.split(",")
    print(save(store.load(results), kind, results, x=x, y=y, policies=labels, target=output))


@app.command()
def show(
    results: Dataset,
    columns: Annotated[str | None, typer.Option(help="Results to show, comma-separated.", show_default=False)] = None,
    versus: Annotated[str | None, typer.Option(help="Paired differences to this policy.", show_default=False)] = None,
    control: Annotated[bool, typer.Option("--control", help="Offered load as control variate.")] = False,
) -> None:
    """Print the table of estimates with intervals, or of paired differences."""
    from mcflow import report, store

    dataset = store.load(results)
    names = columns.split(",") if columns else None
    if versus is None:
        _show_tables(dataset, names, control)
        return
    if control:
        raise InputError("does not go with --versus; leave one out", where="--control")
    if versus not in dataset["policy"].values.tolist():
        raise InputError(f"no policy {versus!r}; there are: {', '.join(dataset['policy'].values)}", where="--versus")
    _check_columns(names, _names(measured=True))
    if dataset.sizes["policy"] < 2:
        raise InputError("there is no other policy to compare with", where="--versus")
    report.console().print(report.versus_table(dataset, versus, names))


def _names(measured: bool = False) -> list[str]:
    """Names of results that a table can show."""
    from mcflow import schema

    groups = schema.MEASURED if measured else (*schema.MEASURED, *schema.COMPUTED, *schema.INPUTS, schema.WARMUP_MSER)
    return [variable.name for variable in groups if variable.name != "verdict"]


def _check_columns(columns: list[str] | None, known: list[str]) -> None:
    import difflib

    for name in columns or []:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise InputError(f"unknown result {name!r}; {hint}", where="--columns")


def _show_tables(dataset: Any, columns: list[str] | None, control: bool = False) -> None:
    from mcflow import report

    _check_columns(columns, _names())
    console = report.console()
    for table in report.tables(dataset, columns, control):
        console.print(table)
    for note in report.notes(dataset, control):
        console.print(note)


@app.command()
def export(
    results: Dataset, output: Annotated[Path, typer.Argument(help="NetCDF file, OUT.nc.", show_default=False)]
) -> None:
    """Write a dataset as NetCDF-4."""
    from mcflow import store
    from mcflow.outputs import check_outputs

    check_outputs(output)
    store.export(store.load(results), output)
    print(output)


@app.command()
def services(
    build: Annotated[
        Path | None, typer.Option(help="Write a table of a model and GPU from aiconfigurator.", show_default=False)
    ] = None,
    model: Annotated[str | None, typer.Option(help="With --build: model, e.g. llama-3.1-8b.")] = None,
    gpu: Annotated[str | None, typer.Option(help="With --build: GPU, e.g. h100.")] = None,
    tensor_parallel: Annotated[int, typer.Option(help="With --build: GPUs that share the model.")] = 1,
) -> None:
    """List presets of iteration times (model, GPU, roofline constants), or build a table of one's own."""
    from mcflow import report
    from mcflow.commands import build_service, service_table

    if build is None and (model is not None or gpu is not None):
        raise InputError("go with --build FILE.csv", where="--model, --gpu")
    if build is None:
        report.console().print(service_table())
    else:
        build_service(build, model, gpu, tensor_parallel)
        print(build)


@traces.command()
def inspect(
    file: TraceFile,
    time_unit: TimeUnit = None,
    start: Start = None,
    rows: Rows = None,
    as_json: Json = False,
    figure: Annotated[Path | None, typer.Option(help="Draw lengths and rate: PNG, PDF or SVG file.")] = None,
) -> None:
    """Show lengths, rate, bursts and dependence of a trace."""
    from mcflow import report
    from mcflow.workload.summary import summarise
    from mcflow.workload.trace import read_trace

    if figure is not None:
        from mcflow.plot import check_figure

        check_figure(figure, inputs=(file,))
    trace = read_trace(file, time_unit, start=start, rows=rows)
    tell(trace.notices)
    summary = summarise(trace)
    if figure is not None:
        from mcflow.plot.trace import save

        save(trace, figure)
    if as_json:
        _print_json(summary)
        return
    console = report.console()
    for table in report.trace_tables(summary):
        console.print(table)
    for line in report.rate_lines(summary, console.encoding):
        console.print(line, markup=False)
    if figure is not None:
        print(f"figure: {figure}")


@traces.command(name="fit")
def fit_lengths(
    file: TraceFile,
    output: Annotated[Path, typer.Option("-o", "--output", help="CSV file of the histogram.", show_default=False)],
    time_unit: TimeUnit = None,
    start: Start = None,
    rows: Rows = None,
) -> None:
    """Write the joint length histogram of a trace, for lengths: {kind: histogram, file: ...}."""
    from mcflow.outputs import check_outputs
    from mcflow.workload.summary import fit, write_fit
    from mcflow.workload.trace import read_trace

    if output.suffix.lower() != ".csv":
        raise InputError("must end in .csv", where=str(output))
    check_outputs(output, inputs=(file,))
    trace = read_trace(file, time_unit, start=start, rows=rows)
    fitted = fit(trace)
    write_fit(fitted, output)
    tell(trace.notices)
    cells, off = len(fitted.law.weight), 100 * (fitted.law_work / fitted.rows_work - 1)
    print(f"E[w] of {len(trace):,} rows:   {fitted.rows_work:.10g}")
    print(f"E[w] of {cells:,} cells:  {fitted.law_work:.10g} ({off:+.2g} %)")
    print(f"histogram: {output}")


@app.command(name="policies")
def list_policies() -> None:
    """List policies: rule, parameters, victims, what each knows of output lengths."""
    from mcflow import report
    from mcflow.commands import policy_table

    report.console().print(policy_table())


if __name__ == "__main__":
    main()
