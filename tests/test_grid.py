"""Numbers of an experiment file -> grid points: forms, exact decimals, axes, overrides, keys."""

from __future__ import annotations

import json
import math
import re
from fractions import Fraction as F
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcflow.budget import Budget
from mcflow.errors import InputError
from mcflow.exact import exact
from mcflow.experiment import Experiment
from mcflow.grid import Point, expand
from mcflow.policies.flow_control import FlowControlParams
from mcflow.quantity import AxisRef, Derived, evaluate, parse, plain
from mcflow.spec import AxisSpec

#: The paper's classes: E[w] = 4060/3.
BASE: dict[str, Any] = {
    "name": "grid",
    "seed": 1,
    "workload": {
        "arrivals": {"rate": {"axis": "rate"}},
        "lengths": {
            "kind": "classes",
            "classes": [{"prompt": 10, "output": 20}, {"prompt": 10, "output": 40}, {"prompt": 10, "output": 60}],
        },
    },
    "system": {"capacity": 16492},
    "policies": [{"name": "flow-control", "b": 12}],
    "axes": {"rate": [3, 6]},
    "run": {"slots": 1000, "replications": 2},
}


def load(folder: Path, changes: dict[str, Any] | None = None, overrides: list[str] | None = None) -> Experiment:
    """BASE with some top-level keys replaced, through a file (JSON is YAML)."""
    path = folder / "grid.yaml"
    path.write_text(json.dumps(BASE | (changes or {})))
    return Experiment(path, overrides)


def points(folder: Path, changes: dict[str, Any] | None = None, overrides: list[str] | None = None) -> list[Point]:
    return expand(load(folder, changes, overrides))


def axis(values: Any) -> list[F]:
    return AxisSpec.model_validate(values).values()


# Axes


def test_linspace_gives_the_decimals_that_people_mean() -> None:
    assert axis({"linspace": [0.0, 0.2, 21]}) == [F(i, 100) for i in range(21)]
    assert axis({"linspace": [0, 0.6, 25]}) == [F(i, 40) for i in range(25)]
    assert axis({"linspace": [1, 0, 3]}) == [1, F(1, 2), 0]
    assert axis({"linspace": [5, 7, 1]}) == [5]
    assert axis({"linspace": [0, 1, 4]}) == [0, F("0.333333333333"), F("0.666666666667"), 1]


def test_range_is_exact_and_includes_its_end() -> None:
    assert axis({"range": [0.1, 0.5, 0.1]}) == [F(i, 10) for i in range(1, 6)]
    assert axis({"range": [1, 2, 0.3]}) == [F("1"), F("1.3"), F("1.6"), F("1.9")]
    assert axis({"range": [2, 1, -0.25]}) == [F(2), F("1.75"), F("1.5"), F("1.25"), F(1)]
    assert axis({"range": [3, 3, 1]}) == [3]


def test_logspace_goes_from_first_to_last() -> None:
    assert axis({"logspace": [0.01, 100, 5]}) == [F(1, 100), F(1, 10), 1, 10, 100]
    assert axis({"logspace": [1, 2, 3]}) == [1, F("1.41421356237"), 2]


@given(st.integers(-(10**6), 10**6), st.integers(1, 400), st.integers(1, 10**4), st.integers(0, 5))
def test_range_never_loses_a_point_to_rounding(start: int, count: int, step: int, decimals: int) -> None:
    scale = 10**decimals
    values = axis({"range": [start / scale, (start + count * step) / scale, step / scale]})
    assert values == [F(start + i * step, scale) for i in range(count + 1)]


def test_a_list_takes_numbers_however_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    text = json.dumps(BASE | {"axes": "AXES"}).replace('"AXES"', "{rate: [1, 2.5, 1e2, 1_000, '0.29']}")
    path.write_text(text)
    assert Experiment(path).spec.axis_values == {"rate": [1, F(5, 2), 100, 1000, F(29, 100)]}


# Forms


@pytest.mark.parametrize(
    ("epsilon", "capacity"),
    # MODEL section 3, the table of references: b E[w] = 16240
    [("0", 16240), ("0.015", 16487), ("0.05", 17094), ("0.1", 18044), ("0.15", 19105), ("0.2", 20300), ("0.3", 23200)],
)
def test_capacity_from_slack(tmp_path: Path, epsilon: str, capacity: int) -> None:
    form = {"from": "slack", "budget": 12, "epsilon": float(epsilon)}
    assert points(tmp_path, {"system": {"capacity": form}})[0].scenario.capacity == capacity


def test_forms_are_exact_where_floats_are_not() -> None:
    # 0.29 x 100 is 28.999999999999996 in floats, 4.35 x 100 is 434.99999999999994.
    capacity = parse({"from": "slack", "budget": 0.29, "epsilon": 0})
    assert evaluate(capacity, {}, F(100)) == 29
    capacity = parse({"from": "slack", "budget": 4.35, "epsilon": 0})
    assert evaluate(capacity, {}, F(100)) == 435
    # (1 - 0.9) is 0.09999999999999998: 3 / (1 - 0.9) = 30.000000000000004, and 1 - 0.7 the other way.
    assert evaluate(parse({"from": "slack", "budget": 3, "epsilon": 0.9}), {}, F(1)) == 30
    assert evaluate(parse({"from": "slack", "budget": 0.9, "epsilon": 0.7}), {}, F(1)) == 3


@given(st.integers(1, 10**5), st.integers(0, 999), st.integers(1, 10**6))
def test_capacity_from_slack_is_the_exact_floor(milli_budget: int, milli_epsilon: int, workload: int) -> None:
    form = parse({"from": "slack", "budget": milli_budget / 1000, "epsilon": milli_epsilon / 1000})
    room = F(milli_budget * workload, 1000 - milli_epsilon)
    assert evaluate(form, {}, F(workload)) == math.floor(room)


def test_budget_from_slack(tmp_path: Path) -> None:
    policies = [{"name": "flow-control", "b": {"from": "slack", "capacity": 16492, "epsilon": {"axis": "epsilon"}}}]
    grid = points(tmp_path, {"policies": policies, "axes": {"rate": [1], "epsilon": [0, 0.1]}})
    wanted = [float(f"{(1 - e) * 16492 * 3 / 4060:.12g}") for e in (0, 0.1)]
    assert [p.scenario.params.b for p in grid] == [exact(b) for b in wanted]
    assert float(1 - grid[1].scenario.params.b * F(4060, 3) / 16492) == pytest.approx(0.1, abs=1e-11)


def test_rates_from_budget_and_load(tmp_path: Path) -> None:
    def rate(form: dict[str, Any]) -> F | None:
        spec = {"workload": {**BASE["workload"], "arrivals": {"rate": form}}, "axes": {}}
        return points(tmp_path, spec)[0].scenario.rate

    assert rate({"from": "budget", "budget": 12, "factor": 0.95}) == F("11.4")
    assert rate({"from": "budget", "budget": 0.29, "factor": 3}) == F("0.87")
    assert rate({"from": "load", "capacity": 16492, "load": 1}) == F("12.1862068966")
    assert rate({"from": "load", "capacity": 4060, "load": 0.5}) == F("1.5")


def test_forms_nest_and_follow_axes(tmp_path: Path) -> None:
    """The rate of the experiment lmsys-overflow: 95 % of the budget that leaves slack epsilon."""
    budget = {"from": "slack", "capacity": {"axis": "M"}, "epsilon": {"axis": "epsilon"}}
    changes = {
        "workload": {**BASE["workload"], "arrivals": {"rate": {"from": "budget", "budget": budget, "factor": 0.95}}},
        "system": {"capacity": {"axis": "M"}},
        "policies": [{"name": "flow-control", "b": budget}],
        "axes": {"M": [4060, 8120], "epsilon": {"linspace": [0, 0.2, 2]}},
    }
    seen = [(p.scenario.capacity, p.scenario.params.b, p.scenario.rate) for p in points(tmp_path, changes)]
    assert seen == [
        (4060, 3, F("2.85")), (4060, F("2.4"), F("2.28")), (8120, 6, F("5.7")), (8120, F("4.8"), F("4.56")),
    ]  # fmt: skip


def test_rates_of_classes_add_up_and_weigh(tmp_path: Path) -> None:
    def classes(*rates: Any) -> dict[str, Any]:
        items = [{"prompt": 10, "output": 20 * (k + 1), "rate": rate} for k, rate in enumerate(rates)]
        return {"workload": {"lengths": {"kind": "classes", "classes": items}}}

    same = points(tmp_path, classes(*[{"axis": "rate"}] * 3))
    assert [p.scenario.rate for p in same] == [9, 18]
    assert same[0].scenario.lengths.probability.tolist() == [1 / 3] * 3
    fixed = points(tmp_path, classes(0.1, 0.2, 0.3) | {"axes": {}})[0].scenario
    assert fixed.rate == F("0.6") and fixed.lengths.weight.tolist() == [1, 2, 3]
    form = {"from": "budget", "budget": 4, "factor": 0.95}
    derived = points(tmp_path, classes(form, form, form) | {"axes": {}})[0].scenario
    assert derived.rate == F("11.4")


def test_quantities_survive_a_round_trip() -> None:
    for value in (3, 0.29, {"axis": "b"}, {"from": "slack", "budget": {"axis": "b"}, "epsilon": 0.1}):
        assert plain(parse(value)) == value
    assert parse({"axis": "b"}) == AxisRef("b")
    assert parse({"from": "budget", "factor": 1, "budget": 2}) == Derived(
        "budget", (("budget", F(2)), ("factor", F(1)))
    )


# Exact decimals


def test_decimals_are_what_is_written(tmp_path: Path) -> None:
    for b in (0.29, 0.1, 1.005, 12.5, "0.3333333333333333333333333"):
        scenario = points(tmp_path, {"policies": [{"name": "flow-control", "b": b}]})[0].scenario
        assert scenario.params.b == F(str(b))
    with pytest.raises(InputError):
        exact(float("nan"))


def test_credit_budgets_do_not_drift(tmp_path: Path) -> None:
    """MODEL section 1: floor((t + 1) 0.29) goes wrong in floats at t = 99."""
    assert math.floor(100 * 0.29) == 28  # the trap
    params = FlowControlParams(b=0.29)
    drawn = params.budget.draw(0, 1000)
    assert drawn[99] == 1 and drawn[:100].sum() == 29 and drawn.sum() == 290
    assert np.array_equal(drawn, [(t + 1) * 29 // 100 - t * 29 // 100 for t in range(1000)])
    # Far out, where p (t + 1) leaves 64 bits, and with a denominator that does.
    late = Budget.of("0.123456789012345678").draw(10**12, 5)
    p, q = 123456789012345678, 10**18
    assert late.tolist() == [(t + 1) * p // q - t * p // q for t in range(10**12, 10**12 + 5)]
    assert Budget.of("1e-30").draw(0, 3).tolist() == [0, 0, 0]
    assert Budget.of("1e-300").draw(0, 3).tolist() == [0, 0, 0]


def test_protected_share_is_exact(tmp_path: Path) -> None:
    from mcflow.policies import get
    from mcflow.scenario import setting_of

    for alpha, capacity, limit in ((0.1, 1000, 900), (0.9, 10, 1), (0.29, 100, 71), (0.42, 50, 29)):
        changes = {"policies": [{"name": "greedy", "alpha": alpha}], "system": {"capacity": capacity}}
        scenario = points(tmp_path, changes)[0].scenario
        state = get("greedy").build(scenario.params, setting_of(scenario.lengths, capacity))
        assert state.limit == limit


# Points


def test_points_come_in_order_with_indices_and_values(tmp_path: Path) -> None:
    changes = {
        "policies": [{"name": "flow-control", "b": {"axis": "b"}}, {"name": "greedy", "alpha": 0.1}],
        "axes": {"rate": [3, 6], "b": {"range": [10, 12, 1]}},
    }
    grid = points(tmp_path, changes)
    assert [p.index for p in grid] == [(k, i, j) for k in range(2) for i in range(2) for j in range(3)]
    assert [tuple(p.values.values()) for p in grid[:6]] == [(r, b) for r in (3, 6) for b in (10, 11, 12)]
    assert all(list(p.values) == ["rate", "b"] for p in grid)
    assert [p.scenario.params.b for p in grid[:3]] == [10, 11, 12]
    # Greedy does not know b: its three cells of a rate are one point of the journal.
    assert len({p.scenario.key(2) for p in grid[6:]}) == 2
    assert len({p.scenario.key(2) for p in grid}) == 6 + 2


def test_keys_hold_what_results_depend_on_and_nothing_else(tmp_path: Path) -> None:
    def key(changes: dict[str, Any] | None = None, replications: int = 2) -> str:
        return points(tmp_path, changes)[0].scenario.key(replications)

    base = key()
    assert key() == base
    same: list[dict[str, Any]] = [
        {"name": "other"}, {"description": "text"}, {"axes": {"rate": [3, 4, 5]}}, {"figures": [{"kind": "overflow"}]},
        {"policies": [{"name": "flow-control", "b": 12, "label": "x", "law": "credit", "victims": "lifo"}]},
        {"policies": [{"name": "flow-control", "b": 12}, {"name": "greedy", "alpha": 0.1}]},
        {"policies": [{"name": "flow-control", "b": "12.0"}]},
        {"run": {"slots": 1000, "replications": 2, "warmup": "auto"}},
        {"system": {"capacity": 16492, "block_size": 1}},
        {"system": {"capacity": {"from": "slack", "budget": 12, "epsilon": "252/16492"}}},
    ]  # fmt: skip
    for changes in same:
        assert key(changes) == base, changes
    other: list[dict[str, Any]] = [
        {"seed": 2}, {"axes": {"rate": [4]}}, {"system": {"capacity": 16493}},
        {"system": {"capacity": 16492, "block_size": 2}},
        {"policies": [{"name": "flow-control", "b": 12.5}]},
        {"policies": [{"name": "flow-control", "b": 12, "law": "poisson"}]},
        {"policies": [{"name": "flow-control", "b": 12, "victims": "all"}]},
        {"policies": [{"name": "flow-control", "b": 12, "progress": "recompute"}]},
        {"policies": [{"name": "flow-control", "b": 12, "supply": "endless"}]},
        {"run": {"slots": 1001, "replications": 2}}, {"run": {"slots": 1000, "warmup": 1}},
        {"workload": {**BASE["workload"], "lengths": {"kind": "rows", "rows": [[10, 20], [10, 40]]}}},
    ]  # fmt: skip
    keys = [key(changes) for changes in other]
    assert len({base, key(replications=3), *keys}) == len(keys) + 2


def test_rows_and_classes_of_one_law_are_one_workload(tmp_path: Path) -> None:
    rows = {"workload": {**BASE["workload"], "lengths": {"kind": "rows", "rows": [[10, 60], [10, 20], [10, 40]]}}}
    assert points(tmp_path, rows)[0].scenario.key(2) == points(tmp_path)[0].scenario.key(2)


def test_weights_are_exact_or_refused(tmp_path: Path) -> None:
    def weights(*given: Any) -> Any:
        items = [{"prompt": 1, "output": k + 1, "weight": weight} for k, weight in enumerate(given)]
        lengths = {"kind": "classes", "classes": items}
        return load(tmp_path, {"workload": {**BASE["workload"], "lengths": lengths}}).lengths({}, {})

    assert weights(0.1, 0.2, 0.7).weight.tolist() == [1, 2, 7]
    assert weights("1/3", "1/6", 0.5).weight.tolist() == [2, 1, 3]
    for given_weights in (
        ["1/1000003", "1/1000033", "1/1000037", "1/1000039"], [1e-20, 1], [1e30, 1], [2**62, 2**62], [2**63, 1],
    ):  # fmt: skip
        try:
            law = weights(*given_weights)
        except InputError:
            continue
        shares = [exact(weight) / sum(map(exact, given_weights)) for weight in given_weights]
        assert law.probability == pytest.approx([float(share) for share in shares], rel=1e-12)
        assert law.mean_workload == sum(s * ((k + 1) + (k + 1) * (k + 2) // 2) for k, s in enumerate(shares))


def following(prompt: Any, output: Any, weight: Any, axes: dict[str, Any]) -> dict[str, Any]:
    """Two classes, the second of which may follow axes, in a cache of slack 0.25."""
    items = [{"prompt": 10, "output": 20}, {"prompt": prompt, "output": output, "weight": weight}]
    return {
        "workload": {"arrivals": {"rate": 1}, "lengths": {"kind": "classes", "classes": items}},
        "system": {"capacity": {"from": "slack", "budget": 12, "epsilon": 0.25}},
        "axes": axes,
    }


def test_lengths_and_weights_follow_axes_and_so_does_what_is_derived(tmp_path: Path) -> None:
    axes = {"l": [0, 100], "C": [40, 60], "share": [0.5, 1]}
    changes = following(*({"axis": name} for name in axes), axes)
    seen = points(tmp_path, changes)
    assert len(seen) == 8
    for point in seen:
        prompt, output, weight = (point.values[name] for name in axes)
        law = point.scenario.lengths
        plain_law = points(tmp_path, following(int(prompt), int(output), float(weight), {}))[0].scenario
        assert (law.max_prompt, law.max_output) == (max(10, prompt), output)
        heavy = prompt * output + output * (output + 1) / 2
        assert law.mean_workload == (410 + weight * heavy) / (1 + weight)
        assert point.scenario.capacity == 16 * law.mean_workload // 1
        assert point.scenario.key(2) == plain_law.key(2)
    laws = {id(point.scenario.lengths) for point in seen}
    assert len(laws) == 8 and len({point.scenario.key(2) for point in seen}) == 8


def test_points_of_one_law_share_it(tmp_path: Path) -> None:
    changes = following(10, {"axis": "C"}, 1, {"C": [40, 60], "e": [1, 2, 3]})
    changes["workload"]["arrivals"]["rate"] = {"axis": "e"}
    assert len({id(point.scenario.lengths) for point in points(tmp_path, changes)}) == 2


@pytest.mark.parametrize(
    ("prompt", "output", "weight", "values", "text"),
    [
        ({"axis": "x"}, 5, 1, [3, 0.5], "axes.x[1]: must be a whole number, got 0.5"),
        ({"axis": "x"}, 5, 1, [3, -1], "axes.x[1]: must be > 0, got -1"),
        ({"axis": "x"}, 5, 1, [2**24 + 1], "axes.x[0]: must be <= 16777216"),
        (5, {"axis": "x"}, 1, [3, 0], "axes.x[1]: must be > 0, got 0"),
        (5, 5, {"axis": "x"}, [1, 0], "axes.x[1]: must be > 0, got 0"),
    ],
)
def test_lengths_that_an_axis_makes_impossible(
    tmp_path: Path, prompt: Any, output: Any, weight: Any, values: list[float], text: str
) -> None:
    with pytest.raises(InputError, match=re.escape(text)):
        points(tmp_path, following(prompt, output, weight, {"x": values}))


@pytest.mark.parametrize(
    ("slots", "extra", "warmup"),
    [
        (10_000, {}, 1000),  # a tenth
        (1000, {}, 120),  # at least 2 C
        (100, {}, 50),  # never more than half
        (10_000, {"supply": "endless", "victims": "none"}, 60),  # stationary after C slots exactly
        (10_000, {"supply": "endless"}, 1000),
    ],
)
def test_automatic_warmup(tmp_path: Path, slots: int, extra: dict[str, str], warmup: int) -> None:
    changes = {"policies": [{"name": "flow-control", "b": 12, **extra}], "run": {"slots": slots}}
    assert points(tmp_path, changes)[0].scenario.warmup == warmup


# Labels


def test_labels(tmp_path: Path) -> None:
    spec = load(
        tmp_path, {"policies": [{"name": "flow-control", "b": 12}, {"name": "greedy", "alpha": 0.1, "label": "g"}]}
    ).spec
    assert [entry.label for entry in spec.policies] == ["flow-control", "g"]
    twice = [{"name": "flow-control", "b": b} for b in (12, 13)]
    with pytest.raises(InputError, match=r"policies\[1\]: label 'flow-control' is used twice"):
        load(tmp_path, {"policies": twice})
    twice[1]["label"] = "flow-control 13"
    assert len(load(tmp_path, {"policies": twice}).spec.policies) == 2


# --set


def test_set_replaces_and_adds(tmp_path: Path) -> None:
    overrides = [
        "run.slots=1e4", "run.warmup=100", "policies[0].b=0.29", "policies.0.label=mine", "axes.rate=[1, 2, 5]",
        "workload.lengths.classes[2].output=80", "description=a text",
        "system={capacity: 4060, block_size: 16}",
    ]  # fmt: skip
    experiment = load(tmp_path, None, overrides)
    run, entry = experiment.spec.run, experiment.spec.policies[0]
    assert (run.slots, run.warmup, run.replications) == (10_000, 100, 2)
    assert (entry.params["b"], entry.label) == (F(29, 100), "mine")
    assert experiment.spec.axis_values == {"rate": [1, 2, 5]}
    assert experiment.lengths({}, {}).max_output == 80 and experiment.spec.description == "a text"
    grid = expand(experiment)
    assert (grid[0].scenario.capacity, grid[0].scenario.block_size, len(grid)) == (4060, 16, 3)


def test_set_the_last_one_wins_and_the_file_stays(tmp_path: Path) -> None:
    assert load(tmp_path, None, ["seed=5", "seed=6"]).spec.seed == 6
    assert json.loads((tmp_path / "grid.yaml").read_text())["seed"] == 1
    nested = load(tmp_path, None, ["system.capacity={from: slack, budget: 12, epsilon: 0.1}"])
    assert expand(nested)[0].scenario.capacity == 18044


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("run.slots", "--set: expected KEY=VALUE, got 'run.slots'"),
        ("=5", "--set: expected KEY=VALUE"),
        ("rum.slots=5", "--set rum.slots: rum is not in "),
        ("run.slots.more=5", "--set run.slots.more: "),
        ("policies[1].b=5", r"--set policies[1].b: policies[1] is not in "),
        ("policies[0].c=5", r"--set policies[0].c: unknown key"),
        ("run.slts=5", "--set run.slts: unknown key; did you mean slots?"),
        ("run.slots=0", "--set run.slots: "),
        ("run.slots=[", "--set run.slots:1:2: "),
        ("policies[0].b=-1", r"--set policies[0].b: must be > 0, got -1"),
        ("axes.rate=[1, -1]", "--set axes.rate: axes.rate[1]: must be > 0, got -1"),
        ("axes.more=[1]", "--set axes.more: nothing refers to this axis"),
        ("run.²=5", "--set run.²: "),
        ("policies[²].b=5", "--set policies[²].b: "),
    ],
)
def test_set_mistakes_name_the_option(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        points(tmp_path, None, [override])
    assert str(caught.value).startswith(message)
