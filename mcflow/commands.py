"""What the commands simulate, theory and policies do, apart from printing."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.table import Table

from mcflow import policies
from mcflow.budget import Budget
from mcflow.errors import InputError, RunError
from mcflow.exact import exact
from mcflow.experiment import WorkloadFile
from mcflow.policies.contract import Policy, PolicyParams
from mcflow.policies.victims import VICTIMS
from mcflow.scenario import LARGEST_CAPACITY, Scenario, automatic_warmup, setting_of
from mcflow.simulate import Outcome, simulate, simulate_trace
from mcflow.spec import readable
from mcflow.tune import OBJECTIVES, Tuning, tune, values_of
from mcflow.workload.trace import read_trace

#: Most slots of a trajectory.
MOST_ROWS = 50_000_000

#: Most slots of one run; beyond it somebody mistook a unit.
LONGEST = 10**12


def parameters(policy: Policy, assignments: list[str]) -> PolicyParams:
    """Parse ``K=V`` pairs into the policy's parameters; ``4,4,4`` is a list.

    Raises
    ------
    InputError
        For anything the policy does not accept.
    """
    import difflib

    values: dict[str, Any] = {}
    known = list(policy.params.model_fields)
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise InputError(f"expected K=V, got {assignment!r}", where="--param")
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"{policy.name} takes {', '.join(known)}"
            raise InputError(f"unknown parameter {key!r}; {hint}", where=f"--param {assignment}")
        if key in values:
            raise InputError(f"{key} is given twice", where=f"--param {assignment}")
        values[key] = text.split(",") if "," in text else text
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


def _arriving(workload: Path) -> WorkloadFile:
    """A workload file that says how many requests arrive."""
    file = WorkloadFile(workload)
    if file.rate is None:
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


def simulate_once(
    *,
    capacity: int,
    policy: str,
    param: list[str],
    trace: Path | None,
    workload: Path | None,
    time_unit: str | None,
    slots: int | None,
    default_slots: int,
    seed: int,
    block_size: int,
    progress: str,
    victims: str | None,
    service: str,
    beta: str | None,
    record: bool,
    keep_usage: bool,
) -> tuple[Outcome, list[str]]:
    """Check the options of ``mcflow simulate`` and run it.

    Returns
    -------
    tuple of Outcome and list of str
        The outcome, and what the user should know (units taken, rows dropped, rejections).

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
    _one_of("--progress", progress, ["reset", "recompute"])
    _one_of("--service", service, ["unit"])
    chosen = _policy(policy)
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
        if time_unit is not None:
            raise InputError("goes with --trace only", where="--time-unit")
        file = _arriving(workload)
        scenario = Scenario(
            policy, params, capacity, file.lengths, file.rate, slots or default_slots, 0, seed, victims, recompute,
            block_size, probability, file.predictions,
        )  # fmt: skip
        try:
            outcome = simulate(scenario, record=record, keep_usage=keep_usage)
        except InputError as error:
            raise error.at("--param") from None
        _not_overfull(outcome)
        messages = [] if slots else [f"{default_slots:,} slots; --slots sets another horizon"]
        return outcome, messages + _rejections(outcome, capacity)
    assert trace is not None
    rows = read_trace(trace, time_unit)
    if rows.arrived is None:
        raise InputError(
            "has no arrival times; to draw its lengths under Poisson arrivals, write a --workload file with "
            "lengths: {kind: trace, file: ...}",
            where=str(trace),
        )
    if keep_usage:
        last = int(min(rows.arrived.max(), 2**53))
        if last < 2**53:
            _check_rows(last if slots is None else min(last, slots))
    try:
        outcome = simulate_trace(
            policy, params, arrived=rows.arrived, prompt=rows.prompt, output=rows.output, ident=rows.row,
            capacity=capacity, slots=slots, seed=seed, victims=victims, recompute=recompute,
            block_size=block_size, keep_usage=keep_usage, beta=probability,
        )  # fmt: skip
    except InputError as error:
        raise error.at(str(trace)) from None
    _not_overfull(outcome)
    return outcome, [*rows.notices, *_rejections(outcome, capacity)]


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
            return class_budget_report(
                file.lengths, capacity, [Budget.of(b).mean for b in budget.split(",")], file.rate
            )
        if budget is None and law != "credit":
            raise InputError("--law goes with --budget")
        chosen = None if budget is None else Budget.of(budget, law)
    except InputError as error:
        raise error.at("--budget") from None
    report = theory_report(file.lengths, capacity, budget=chosen, rate=file.rate)
    return report | _importance(file, capacity, chosen, report, relative_error, seed) if importance else report


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


def tune_once(
    *,
    capacity: int,
    policy: str,
    param: list[str],
    workload: Path | None,
    objective: str,
    slots: int,
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
    if jobs == 0 or jobs < -1:
        raise InputError(f"must be >= 1, or -1 for all cores, got {jobs}", where="--jobs")
    file = _arriving(workload)
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
        warmup = 0 if drain else automatic_warmup(file.lengths, slots, False)
        scenario = Scenario(
            policy, params, capacity, file.lengths, file.rate, slots, warmup, seed, chosen.victims,
            beta=_beta(chosen.victims, None, params), predictions=file.predictions, drain=drain,
        )  # fmt: skip
        setting = setting_of(file.lengths, capacity, 1, file.predictions)
        try:
            chosen.build(params, setting)
            if params.uses is not None:
                file.predictions.check(params.uses)
        except InputError as error:
            raise error.at(f"--param {name}") from None
        candidates.append((value, scenario))
    return name, tune(candidates, objective, replications=replications, limit=limit, jobs=jobs)


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
