"""What the commands simulate, theory and policies do, apart from printing."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.table import Table

from mcflow import policies
from mcflow.budget import Budget
from mcflow.errors import InputError, RunError, tell
from mcflow.exact import exact
from mcflow.experiment import WorkloadFile
from mcflow.policies.contract import Policy, PolicyParams
from mcflow.policies.victims import VICTIMS
from mcflow.scenario import LARGEST_CAPACITY, LARGEST_RATE, Scenario, automatic_warmup, setting_of
from mcflow.service import ServiceSpec, presets, service_of
from mcflow.simulate import Outcome, simulate, simulate_trace
from mcflow.spec import readable
from mcflow.splitting import MEASURES, Splitting, split
from mcflow.stability import Judgement
from mcflow.tune import OBJECTIVES, Tuning, tune, values_of
from mcflow.workload.predictions import MaxNew, Predictions
from mcflow.workload.trace import read_trace

#: Most slots of a trajectory.
MOST_ROWS = 50_000_000

#: Most slots of one run; beyond it somebody mistook a unit.
LONGEST = 10**12


def assigned(option: str, assignments: list[str], known: list[str], owner: str) -> dict[str, str]:
    """Parse ``K=V`` pairs with keys among ``known``.

    Raises
    ------
    InputError
        For anything else, naming the option.
    """
    import difflib

    values: dict[str, str] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise InputError(f"expected K=V, got {assignment!r}", where=option)
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"{owner} takes {', '.join(known) or 'none'}"
            raise InputError(f"unknown parameter {key!r}; {hint}", where=f"{option} {assignment}")
        if key in values:
            raise InputError(f"{key} is given twice", where=f"{option} {assignment}")
        values[key] = text
    return values


def parameters(policy: Policy, assignments: list[str]) -> PolicyParams:
    """Parse ``K=V`` pairs into the policy's parameters; ``4,4,4`` is a list.

    Raises
    ------
    InputError
        For anything the policy does not accept.
    """
    texts = assigned("--param", assignments, list(policy.params.model_fields), policy.name)
    values = {key: text.split(",") if "," in text else text for key, text in texts.items()}
    try:
        return policy.params.model_validate(values)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        name = str(problem["loc"][0]) if problem["loc"] else ", ".join(values)
        if problem["type"] == "missing":
            raise InputError(f"{policy.name} needs {name}; give --param {name}=...", where="--param") from None
        raise InputError(readable(problem), where=f"--param {name}") from None


def _bounded(option: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InputError(f"must be from {least} to {most}, got {value}", where=option)


def _one_of(option: str, value: str, known: list[str]) -> None:
    if value not in known:
        raise InputError(f"must be one of {', '.join(known)}, got {value!r}", where=option)


def _policy(name: str) -> Policy:
    try:
        return policies.get(name)
    except InputError as error:
        raise error.at("--policy") from None


def _arriving(workload: Path, service: ServiceSpec | None = None) -> WorkloadFile:
    """A workload file that says how many requests arrive, in slots or, with iteration times, seconds."""
    file = WorkloadFile(workload, timed=service is not None and service.kind != "unit")
    if file.arrivals is None:
        raise InputError("no arrival rate; give arrivals: {kind: poisson, rate: ...}", where=str(workload))
    return file


def _beta(victims: str, text: str | None, params: PolicyParams) -> Fraction:
    """Probability of the victim rule beta: the policy's own parameter, or the option."""
    own = getattr(params, "beta", None)
    if own is not None and text is None:
        return Fraction(own)
    if (victims == "beta") != (text is not None):
        message = "victims beta needs --beta" if text is None else "goes with --victims beta only"
        raise InputError(message, where="--victims" if text is None else "--beta")
    if text is None:
        return Fraction(1)
    try:
        value = exact(text)
    except InputError as error:
        raise error.at("--beta") from None
    if not 0 < value <= 1:
        raise InputError(f"must be > 0 and <= 1, got {text}", where="--beta")
    return value


def gate_of(policy: Policy, assignments: list[str]) -> Budget | None:
    """Parse ``b=0.9`` and ``law=...`` into the activation budget in front of a policy; None for no pairs.

    Raises
    ------
    InputError
        For anything else, or a policy that has a budget of its own.
    """
    if not assignments:
        return None
    if hasattr(policy.state, "supply"):
        raise InputError(f"{policy.name} has an activation budget of its own", where="--gate")
    values = assigned("--gate", assignments, ["b", "law"], "a gate")
    if "b" not in values:
        raise InputError("needs b; give --gate b=...", where="--gate")
    try:
        return Budget.of(values["b"], values.get("law", "credit"))
    except InputError as error:
        raise error.at("--gate") from None


def service_named(text: str, scale: str) -> ServiceSpec:
    """Iteration times named on the command line: unit, PRESET, PRESET:table, or a CSV file of points.

    Raises
    ------
    InputError
        If there is no such preset or file.
    """
    try:
        factor = exact(scale)
        if factor <= 0:
            raise InputError(f"must be > 0, got {scale}")
    except InputError as error:
        raise error.at("--service-scale") from None
    if text == "unit":
        if factor != 1:
            raise InputError("goes with a --service in seconds", where="--service-scale")
        return ServiceSpec()
    try:
        if text.endswith(".csv"):
            spec = ServiceSpec(kind="table", file=Path(text), scale=factor)
        else:
            preset, _, kind = text.partition(":")
            if kind not in ("", "roofline", "table"):
                raise InputError(f"unknown kind {kind!r}; known: roofline, table")
            spec = ServiceSpec(kind="table" if kind == "table" else "roofline", preset=preset, scale=factor)
        service_of(spec)
    except InputError as error:
        raise error.at("--service") from None
    return spec


def _plain_scenario(file: WorkloadFile, policy: Policy, params: PolicyParams, capacity: int, seed: int) -> Scenario:
    """A policy with its own victims, progress and accounting under a workload; a slot long, without warm-up."""
    return Scenario(
        policy.name, params, capacity, file.lengths, file.arrivals, 1, 0, seed, policy.victims,
        policy.progress == "recompute", beta=_beta(policy.victims, None, params), predictions=file.predictions,
        replay=file.replays, accounting=policy.accounting,
    )  # fmt: skip


def simulate_once(
    *,
    capacity: int,
    policy: str,
    param: list[str],
    trace: Path | None,
    workload: Path | None,
    time_unit: str | None,
    start: float | None,
    rows: int | None,
    rate: float | None,
    slots: int | None,
    default_slots: int,
    requests: int | None,
    seed: int,
    block_size: int,
    token_budget: int | None,
    progress: str | None,
    accounting: str | None,
    victims: str | None,
    gate: list[str],
    max_new: str | None,
    service: str,
    service_scale: str,
    beta: str | None,
    record: bool,
    keep_usage: bool,
) -> Outcome:
    """Check the options of ``mcflow simulate`` and run it; tells units taken, rows dropped, rejections.

    Raises
    ------
    InputError
        If an option or a file is not usable.
    """
    if (trace is None) == (workload is None):
        raise InputError("give either --trace FILE or --workload FILE")
    _bounded("--capacity", capacity, 1, LARGEST_CAPACITY)
    _bounded("--block-size", block_size, 1, LARGEST_CAPACITY)
    _bounded("--seed", seed, 0, 2**63 - 1)
    if slots is not None:
        _bounded("--slots", slots, 1, LONGEST)
    if requests is not None:
        _bounded("--limit", requests, 1, LONGEST)
    chosen = _policy(policy)
    if token_budget is not None:
        _bounded("--token-budget", token_budget, 1, LARGEST_CAPACITY)
        if chosen.whole_prefill:
            raise InputError(f"{policy} reckons with prefill in one iteration", where="--token-budget")
    progress = chosen.progress if progress is None else progress
    _one_of("--progress", progress, ["reset", "recompute"])
    accounting = chosen.accounting if accounting is None else accounting
    _one_of("--accounting", accounting, ["paper", "engine"])
    times = service_named(service, service_scale)
    before = gate_of(chosen, gate)
    try:
        limit = None if max_new is None else MaxNew.parse(max_new)
    except InputError as error:
        raise error.at("--max-new") from None
    victims = chosen.victims if victims is None else victims
    _one_of("--victims", victims, list(VICTIMS))
    params = parameters(chosen, param)
    probability = _beta(victims, beta, params)
    if victims == "ascending" and params.uses is None:
        raise InputError("ascending needs a policy that expects an output length", where="--victims")
    recompute = progress == "recompute"
    if keep_usage and workload is not None:
        _check_rows(slots or default_slots)
    if workload is not None:
        for option, value in {"--time-unit": time_unit, "--start": start, "--rows": rows, "--rate": rate}.items():
            if value is not None:
                raise InputError("goes with --trace only", where=option)
        file = _arriving(workload, times)
        if requests is not None and requests > file.available:
            raise InputError(f"{requests} requests asked for, but the files hold {file.available}", where="--limit")
        predictions = file.predictions if limit is None else dataclasses.replace(file.predictions, max_new=limit)
        horizon = slots if requests is not None else slots or default_slots
        scenario = Scenario(
            policy, params, capacity, file.lengths, file.arrivals, horizon, 0, seed, victims, recompute, block_size,
            probability, predictions, requests=requests, replay=file.replays, service=times, accounting=accounting,
            token_budget=token_budget, gate=before,
        )  # fmt: skip
        try:
            outcome = simulate(scenario, record=record, keep_usage=keep_usage)
        except InputError as error:
            raise error.at("--param") from None
        _not_overfull(outcome)
        tell(file.notices)
        tell([] if slots or requests else [f"{default_slots:,} slots; --slots sets another horizon"])
        tell(_rejections(outcome, capacity))
        return outcome
    assert trace is not None
    if requests is not None:
        raise InputError("goes with --workload only; a trace takes --rows", where="--limit")
    table = read_trace(trace, time_unit, start=start, rows=rows, timed=times.kind != "unit")
    if table.arrived is None:
        raise InputError(
            "has no arrival times; to draw its lengths under Poisson arrivals, write a --workload file with "
            "lengths: {kind: trace, file: ...}",
            where=str(trace),
        )
    arrived = table.arrived
    messages = list(table.notices)
    if rate is not None:
        if not rate > 0:
            raise InputError(f"must be > 0, got {rate:g}", where="--rate")
        if not table.rate:
            raise InputError("the trace has no rate to scale: no time passes in it", where="--rate")
        arrived = arrived * (table.rate / rate)
        messages.append(table.scaled(rate))
    if keep_usage and times.kind == "unit":
        last = int(min(arrived.max(), 2**53))
        if last < 2**53:
            _check_rows(last if slots is None else min(last, slots))
    try:
        outcome = simulate_trace(
            policy, params, arrived=arrived, prompt=table.prompt, output=table.output, ident=table.row,
            capacity=capacity, slots=slots, seed=seed, victims=victims, recompute=recompute, accounting=accounting,
            block_size=block_size, keep_usage=keep_usage, beta=probability, token_budget=token_budget,
            service=service_of(times), gate=before, predictions=Predictions(max_new=limit or MaxNew()),
        )  # fmt: skip
    except InputError as error:
        raise error.at(str(trace)) from None
    _not_overfull(outcome)
    tell([*messages, *_rejections(outcome, capacity)])
    return outcome


def _check_rows(slots: int) -> None:
    """A trajectory has a row a slot: refuse one that memory cannot hold."""
    if slots > MOST_ROWS:
        raise InputError(
            f"would have a row for each of {slots:,} slots; give --slots below {MOST_ROWS:,}", where="--usage"
        )


def _not_overfull(outcome: Outcome) -> None:
    """A run that had to end because its line outgrew memory has no result to report."""
    if outcome.verdict == "overfull":
        summary = outcome.summary()
        raise RunError(
            f"{summary['waiting']:,} requests wait after {summary['slots']:,} slots and the line grows beyond memory; "
            "lower the rate or simulate fewer slots"
        )


def _rejections(outcome: Outcome, capacity: int) -> list[str]:
    """Say which requests can never be served."""
    count = outcome.summary()["rejected"]
    if not count:
        return []
    first = ""
    if outcome.requests is not None:
        at = int((outcome.requests.status == "rejected").argmax())
        peak = int(outcome.requests.prompt[at]) + int(outcome.requests.output[at])
        first = f", the first being id {outcome.requests.ident[at]} with l + o = {peak}"
    return [f"{count} request(s) can never fit into M = {capacity} and were rejected on arrival{first}"]


def theory_of(
    *,
    capacity: int,
    workload: Path | None,
    budget: str | None,
    law: str,
    importance: bool = False,
    relative_error: float | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Report of ``mcflow theory``; see `mcflow.theory.theory_report` and `mcflow.theory.importance`.

    Raises
    ------
    InputError
        If an option or the file is not usable.
    """
    from mcflow.theory import class_budget_report, theory_report

    if workload is None:
        raise InputError("give --workload FILE")
    _bounded("--capacity", capacity, 1, LARGEST_CAPACITY)
    file = WorkloadFile(workload)
    try:
        if budget is not None and "," in budget:
            if importance:
                raise InputError("--importance is for one budget, that of Algorithm 2: class budgets leave no chance")
            if law != "credit":
                raise InputError("class budgets have no law; give one budget for Algorithm 2 or leave --law out")
            means = [Budget.of(b).mean for b in budget.split(",")]
            report = class_budget_report(file.lengths, capacity, means, file.rate)
            tell(file.notices)
            return report
        if budget is None and law != "credit":
            raise InputError("--law goes with --budget")
        chosen = None if budget is None else Budget.of(budget, law)
    except InputError as error:
        raise error.at("--budget") from None
    report = theory_report(file.lengths, capacity, budget=chosen, rate=file.rate)
    if importance:
        report |= _importance(file, capacity, chosen, report, relative_error, seed)
    tell(file.notices)
    return report


def _importance(
    file: WorkloadFile,
    capacity: int,
    budget: Budget | None,
    report: dict[str, Any],
    relative_error: float | None,
    seed: int,
) -> dict[str, Any]:
    """What ``--importance`` adds to the report of ``mcflow theory``."""
    from mcflow.theory.importance import importance_estimate, importance_report

    if budget is None:
        raise InputError("needs --budget b, the budget of Algorithm 2", where="--importance")
    _bounded("--seed", seed, 0, 2**63 - 1)
    try:
        estimate = importance_estimate(
            file.lengths, capacity, budget, seed=seed, relative_error=relative_error, exact=report["overflow_exact"]
        )
    except InputError as error:
        raise error.at("--importance") from None
    return importance_report(estimate)


def stability_of(
    *,
    capacity: int,
    policy: str,
    param: list[str],
    workload: Path | None,
    rate: float | None,
    tolerance: float,
    longest: int,
    replications: int,
    service: str,
    service_scale: str,
    block_size: int,
    gate: list[str],
    seed: int,
    jobs: int,
) -> tuple[dict[str, Any], tuple[Judgement, ...]]:
    """Check the options of ``mcflow stability`` and judge or bisect.

    Returns
    -------
    tuple of dict and tuple of Judgement
        The result as JSON, and what it rests on.

    Raises
    ------
    InputError
        If an option or the file is not usable.
    """
    from mcflow.stability import boundary, judge
    from mcflow.theory.capacity import sustained_rate

    if workload is None:
        raise InputError("give --workload FILE")
    _bounded("--capacity", capacity, 1, LARGEST_CAPACITY)
    _bounded("--block-size", block_size, 1, LARGEST_CAPACITY)
    _bounded("--replications", replications, 2, 10_000)
    _bounded("--longest", longest, 1024, LONGEST)
    _bounded("--seed", seed, 0, 2**63 - 1)
    _check_jobs(jobs)
    if not 1e-4 <= tolerance < 1:
        raise InputError(f"must be from 0.0001 to 1, got {tolerance:g}", where="--tolerance")
    if rate is not None and not 0 < rate <= LARGEST_RATE:
        raise InputError(f"must be > 0 and <= {LARGEST_RATE}, got {rate:g}", where="--rate")
    times = service_named(service, service_scale)
    file = _arriving(workload, times)
    assert file.arrivals is not None
    if file.arrivals.kind == "trace" or file.replays is not None:
        raise InputError("stability needs arrivals that go on for ever, not a trace", where=str(workload))
    chosen = _policy(policy)
    plain = _plain_scenario(file, chosen, parameters(chosen, param), capacity, seed)
    template = dataclasses.replace(plain, block_size=block_size, service=times, gate=gate_of(chosen, gate))
    options = {"replications": replications, "longest": longest, "jobs": jobs}

    def at(value: float) -> Scenario:
        assert file.arrivals is not None
        return dataclasses.replace(template, arrivals=dataclasses.replace(file.arrivals, rate=value))

    # Prop. 3.2 and 3.5 are about slots: where iterations take real time there is no such rate a second.
    bound = None if template.timed else sustained_rate(file.lengths, capacity, template.accounting)
    critical = None if bound is None else float(bound)
    result: dict[str, Any] = {"policy": policy, "time_unit": "s" if template.timed else "slot"}
    result |= {} if critical is None else {"critical_rate": critical}
    try:
        if rate is not None:
            judgements: tuple[Judgement, ...] = (judge(at(rate), **options),)
            result |= {"rate": rate, "state": judgements[0].state}
        else:
            found = boundary(at, float(file.rate or 1), tolerance=tolerance, limit=critical, **options)
            judgements = found.judgements
            result |= {"largest_stable": found.low, "smallest_unstable": found.high}
    except InputError as error:
        raise error.at("--param") from None
    tell(file.notices)
    listed = [dataclasses.asdict(j) for j in judgements]
    result["judgements"] = [{k: None if v != v else v for k, v in j.items()} for j in listed]
    return result, judgements


def rare_of(
    *,
    capacity: int,
    policy: str,
    param: list[str],
    workload: Path | None,
    supply: str,
    victims: str | None,
    block_size: int,
    accounting: str | None,
    gate: list[str],
    measure: str,
    paths: int,
    slots: int,
    replications: int,
    seed: int,
    jobs: int,
) -> Splitting:
    """Check the options of ``mcflow rare`` and split.

    Raises
    ------
    InputError
        If an option or the file is not usable.
    RunError
        If there is no steady state, or no path gets to the overflow.
    """
    if workload is None:
        raise InputError("give --workload FILE")
    _bounded("--capacity", capacity, 1, LARGEST_CAPACITY)
    _bounded("--block-size", block_size, 1, LARGEST_CAPACITY)
    _bounded("--paths", paths, 8, 100_000)
    _bounded("--slots", slots, 1024, LONGEST)
    _bounded("--replications", replications, 2, 10_000)
    _bounded("--seed", seed, 0, 2**63 - 1)
    _check_jobs(jobs)
    _one_of("--supply", supply, ["arrivals", "endless"])
    _one_of("--measure", measure, list(MEASURES))
    chosen = _policy(policy)
    if victims is not None:
        _one_of("--victims", victims, list(VICTIMS))
    if accounting is not None:
        _one_of("--accounting", accounting, ["paper", "engine"])
    endless = supply == "endless"
    file = WorkloadFile(workload) if endless else _arriving(workload)
    plain = _plain_scenario(file, chosen, parameters(chosen, param), capacity, seed)
    scenario = dataclasses.replace(
        plain, arrivals=None if endless else plain.arrivals, replay=None if endless else plain.replay,
        victims=victims or plain.victims, block_size=block_size, gate=gate_of(chosen, gate),
        accounting=accounting or plain.accounting,
    )  # fmt: skip
    found = split(scenario, paths=paths, slots=slots, replications=replications, measure=measure, jobs=jobs)
    tell(file.notices)
    return found


def _check_jobs(jobs: int) -> None:
    if jobs == 0 or jobs < -1:
        raise InputError(f"must be >= 1, or -1 for all cores, got {jobs}", where="--jobs")


def tune_once(
    *,
    capacity: int,
    policy: str,
    param: list[str],
    workload: Path | None,
    objective: str,
    slots: int,
    requests: int | None,
    service: str,
    service_scale: str,
    replications: int,
    limit: float,
    drain: bool,
    seed: int,
    jobs: int,
) -> tuple[str, Tuning]:
    """Check the options of ``mcflow tune`` and race the candidates.

    Returns
    -------
    tuple of str and Tuning
        Name of the parameter, and what came of it.

    Raises
    ------
    InputError
        If an option or the file is not usable.
    """
    if workload is None:
        raise InputError("give --workload FILE")
    _bounded("--capacity", capacity, 1, LARGEST_CAPACITY)
    _bounded("--slots", slots, 1, LONGEST)
    _bounded("--replications", replications, 2, 100_000)
    _bounded("--seed", seed, 0, 2**63 - 1)
    _one_of("--objective", objective, list(OBJECTIVES))
    if not 0 < limit < 1:
        raise InputError(f"must be > 0 and < 1, got {limit:g}", where="--limit")
    _check_jobs(jobs)
    times = service_named(service, service_scale)
    if requests is not None:
        _bounded("--requests", requests, 1, LONGEST)
        if drain:
            raise InputError("goes with --slots only: with requests everybody is served", where="--drain")
    horizon = slots if requests is None else None
    file = _arriving(workload, times)
    if requests is not None and requests > file.available:
        raise InputError(f"{requests} requests asked for, but the files hold {file.available}", where="--requests")
    chosen = _policy(policy)
    ranges = [text for text in param if ":" in text or ("," in text and chosen.buckets != "class")]
    if len(ranges) != 1:
        raise InputError("give exactly one parameter a range, as b=10:14:0.5 or b=10,12,14", where="--param")
    name, _, text = ranges[0].partition("=")
    fixed = [other for other in param if other is not ranges[0]]
    try:
        values = values_of(text)
    except InputError as error:
        raise error.at(f"--param {name}") from None
    candidates = []
    for value in values:
        params = parameters(chosen, [*fixed, f"{name}={value}"])
        warmup = 0 if drain or horizon is None else automatic_warmup(file.lengths, horizon, False)
        scenario = dataclasses.replace(
            _plain_scenario(file, chosen, params, capacity, seed),
            slots=horizon, warmup=warmup, drain=drain, requests=requests, service=times,
        )  # fmt: skip
        setting = setting_of(file.lengths, capacity, 1, file.predictions)
        try:
            chosen.build(params, setting)
            if params.uses is not None:
                file.predictions.check(params.uses)
        except InputError as error:
            raise error.at(f"--param {name}") from None
        candidates.append((value, scenario))
    found = tune(candidates, objective, replications=replications, limit=limit, jobs=jobs)
    tell(file.notices)
    return name, found


def build_service(target: Path, model: str | None, gpu: str | None, tensor_parallel: int) -> None:
    """Write a table of iteration times from aiconfigurator's figures.

    Raises
    ------
    InputError
        If something is missing, the extra among it.
    """
    from mcflow.outputs import check_outputs, replacing
    from mcflow.timing import build_table

    if model is None or gpu is None:
        raise InputError("needs --model and --gpu", where="--build")
    _bounded("--tensor-parallel", tensor_parallel, 1, 1024)
    check_outputs(target)
    with replacing(target) as temporary:
        build_table(model, gpu, tensor_parallel, file=temporary)


def service_table() -> Table:
    """Presets of iteration times."""
    table = Table(caption="roofline: max(c0, c1 (d + p)) + c2 kv + c3 + c4 p, milliseconds", caption_justify="left")
    frame = presets().drop(columns=["max_error"])
    for column in frame.columns:
        left = column in ("preset", "model", "gpu")
        table.add_column(column.replace("_", " "), justify="left" if left else "right", no_wrap=True)
    for row in frame.itertuples(index=False):
        texts = [f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row[:-1]]
        table.add_row(*texts, f"{100 * row[-1]:.1f} %")
    return table


def policy_table() -> Table:
    """Names, parameters, victims, knowledge and rule of every policy."""
    table = Table()
    for column in ("policy", "parameters", "victims", "knows of o", "rule"):
        table.add_column(column, overflow="fold", no_wrap=column == "policy")
    for name in sorted(policies.POLICIES):
        entry = policies.POLICIES[name]
        fields = entry.params.model_fields.items()
        shown = ", ".join(key if field.is_required() else f"{key}={field.default}" for key, field in fields)
        table.add_row(name, shown, entry.victims, entry.knows, entry.rule)
    return table
