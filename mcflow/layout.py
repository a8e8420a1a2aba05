"""What turns journal rows into a dataset: dims, labels, keys, inputs and attributes."""

from __future__ import annotations

import json
import platform
from fractions import Fraction
from typing import Any

import numpy as np

import mcflow
from mcflow import policies, schema
from mcflow.exact import number
from mcflow.experiment import Experiment
from mcflow.grid import Point
from mcflow.quantity import plain
from mcflow.scenario import Scenario, results_hash
from mcflow.theory.capacity import class_budgets, class_rates, sustained_rate


def layout(
    experiment: Experiment,
    points: list[Point],
    keys: list[str],
    theory_keys: list[str | None],
    hindsight_keys: list[str],
    trajectory_keys: list[str],
) -> dict[str, Any]:
    """Return the layout that `mcflow.store.build` reads, as plain JSON."""
    import numba
    import xarray

    spec = experiment.spec
    inputs = {
        "arrival_rate": [None if p.scenario.rate is None else float(p.scenario.rate) for p in points],
        "capacity": [p.scenario.capacity for p in points],
        "mean_workload": [float(p.scenario.lengths.mean_workload) for p in points],
        "longest_output": [p.scenario.lengths.max_output for p in points],
        "critical_rate": [_sustained_rate(p.scenario) for p in points],
        "load": [
            None
            if p.scenario.rate is None or p.scenario.timed
            else float(p.scenario.rate * p.scenario.lengths.mean_workload / p.scenario.capacity)
            for p in points
        ],
        "budget": [
            float(p.scenario.gate.mean)
            if p.scenario.gate is not None
            else None
            if p.scenario.params.budgets is None
            else float(sum(p.scenario.params.budgets))
            for p in points
        ],
        "backlog_slope_theory": [_backlog_slope(p.scenario) for p in points],
        # That of pilots is known by the rows: store.build fills it in.
        "warmup": [None if spec.run.warmup == "mser" else p.scenario.warmup for p in points],
    }
    return {
        "policies": {
            "label": [entry.label for entry in spec.policies],
            "policy_name": [entry.name for entry in spec.policies],
            "victims": [entry.victims for entry in spec.policies],
            "progress": [entry.progress for entry in spec.policies],
            "accounting": [entry.accounting for entry in spec.policies],
            "gate": ["none" if entry.gate is None else entry.gate.law for entry in spec.policies],
            "supply": [entry.supply for entry in spec.policies],
        },
        "axes": {name: [number(value) for value in values] for name, values in spec.axis_values.items()},
        "replications": 1 if spec.run.precision is not None else spec.run.replications,
        "keys": keys,
        "theory_keys": theory_keys,
        "hindsight_keys": hindsight_keys,
        "trajectory_keys": trajectory_keys,
        "stretches": 0 if spec.trajectory is None else spec.trajectory.points,
        "inputs": inputs,
        "attributes": {
            "mcflow_format": schema.FORMAT,
            "name": spec.name,
            "description": spec.description,
            "seed": str(spec.seed),
            "spec": json.dumps(plain(experiment.file.data)),
            "lengths": points[0].scenario.lengths.source,
            "replications": json.dumps(spec.run.replications)
            if spec.run.precision is None
            else json.dumps({"until": spec.run.precision.describe()}),
            "warmup": str(spec.run.warmup),
            "arrivals": "poisson" if spec.workload.arrivals is None else spec.workload.arrivals.kind,
            "drain": int(spec.run.drain or spec.run.requests is not None),
            "time_unit": "slot" if spec.system.service.kind == "unit" else "s",
            "service": json.dumps(points[0].scenario.service.describe()),
            "results_hash": results_hash(),
            "versions": (
                f"mcflow {mcflow.__version__}, python {platform.python_version()}, numba {numba.__version__}, "
                f"numpy {np.__version__}, xarray {xarray.__version__}"
            ),
        },
    }


def _sustained_rate(scenario: Scenario) -> float | None:
    rate = sustained_rate(scenario.lengths, scenario.capacity, scenario.accounting)
    return None if rate is None else float(rate)


def _backlog_slope(scenario: Scenario) -> float | None:
    """Drift of the line under Algorithm 1 where it never overflows: sum of (lambda_k - b_k)^+."""
    budgets, law = scenario.params.budgets, scenario.lengths
    if policies.get(scenario.policy).buckets != "class" or budgets is None or scenario.rate is None or scenario.timed:
        return None
    rates = class_rates(law, scenario.rate)
    verdict = class_budgets(law.prompt_min.tolist(), law.output_min.tolist(), budgets, rates, scenario.capacity)
    if not verdict.never_overflows:
        return None
    return float(sum(max(rate - b, Fraction(0)) for rate, b in zip(rates, budgets, strict=True)))
