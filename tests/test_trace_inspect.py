"""``mcflow trace``: figures of a trace against hand counts and scipy, histograms against their rows, the figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from test_cli import PLAIN, call, mistake, strict_json

from mcflow.report import sparkline
from mcflow.workload.files import read_histogram
from mcflow.workload.lengths import workload
from mcflow.workload.summary import (
    PERCENTILES,
    dispersion,
    fit,
    gap_cv,
    rate_windows,
    spearman,
    spread,
    summarise,
    work,
)
from mcflow.workload.trace import Trace, read_trace

pytestmark = pytest.mark.filterwarnings("error")


def made(prompt: Any, output: Any, arrived: Any = None) -> Trace:
    """A trace of these columns."""
    columns = (np.array(prompt, dtype=np.int64), np.array(output, dtype=np.int64))
    times = None if arrived is None else np.array(arrived, dtype=np.float64)
    row = np.arange(len(columns[0]))
    return Trace(times, *columns, row, None if times is None else "s", "plain", {}, [], "made.csv")


def poisson(count: int, rate: float, seed: int) -> np.ndarray:
    times: np.ndarray = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))
    return times


# Figures


def test_poisson_arrivals_have_a_coefficient_of_variation_and_dispersion_of_one() -> None:
    count, rate = 100_000, 5.0
    arrived = poisson(count, rate, 20260413)
    # Standard errors: that of the CV of exponentials is 1 / sqrt(n), that of variance / mean of K
    # Poisson counts with mean m is sqrt(2 / K) (1 + O(1 / (m K))).
    cv = gap_cv(arrived)
    assert cv is not None and abs(cv - 1) < 4 / np.sqrt(count)
    for width in (1, 10, 60):
        whole = int((arrived[-1] - arrived[0]) / width)
        found = dispersion(arrived, width)
        assert found is not None and abs(found - 1) < 4 * np.sqrt(2 / (whole - 1))
    windows = rate_windows(arrived)
    assert windows is not None and len(windows["rates"]) == 60
    error = np.sqrt(rate / windows["width"])
    assert max(abs(value - rate) for value in windows["rates"]) < 4.5 * error
    assert sum(windows["rates"]) * windows["width"] == pytest.approx(count)


def test_dispersion_by_hand() -> None:
    # Whole windows of 10 from 3: [3, 13) holds 3, [13, 23) none, [23, 33) 1; 33.5 is in a window cut short.
    arrived = np.array([3, 4, 12.9, 23, 33.5])
    counts = [3, 0, 1]
    assert dispersion(arrived, 10) == pytest.approx(np.var(counts, ddof=1) / np.mean(counts))
    assert dispersion(arrived, 30.5) is None  # one whole window
    assert dispersion(np.arange(100.0), 1) == 0  # one in each
    assert dispersion(np.array([0.0, 1e12]), 1) == pytest.approx(1)  # windows nobody is in cost nothing


def test_gaps_by_hand() -> None:
    gaps = [1, 1, 4]
    assert gap_cv(np.cumsum([7, *gaps]).astype(float)) == pytest.approx(np.std(gaps, ddof=1) / 2)
    assert gap_cv(np.arange(9.0)) == 0


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=2, max_size=30))
def test_spearman_is_scipys(pairs: list[tuple[int, int]]) -> None:
    prompt, output = np.array(pairs, dtype=np.int64).T
    found = spearman(prompt, output)
    if len(set(prompt.tolist())) == 1 or len(set(output.tolist())) == 1:
        assert found is None
    else:
        assert found == pytest.approx(scipy.stats.spearmanr(prompt, output).statistic, abs=1e-12)


@given(st.lists(st.integers(1, 2**40), min_size=1, max_size=40))
def test_quantiles_are_numpys(values: list[int]) -> None:
    found = spread(np.array(values, dtype=np.int64))
    assert (found["min"], found["max"]) == (min(values), max(values))
    for percent in PERCENTILES:
        assert found[f"p{percent}"] == pytest.approx(np.percentile(values, percent), rel=1e-12)
    assert found["mean"] == pytest.approx(sum(values) / len(values), rel=1e-15)


@given(st.lists(st.tuples(st.integers(1, 2**53), st.integers(1, 2**53)), min_size=1, max_size=6))
def test_token_slots_are_exact_at_any_size(pairs: list[tuple[int, int]]) -> None:
    prompt, output = zip(*pairs, strict=True)
    trace = made(prompt, output)
    assert [int(value) for value in work(trace)] == [workload(*pair) for pair in pairs]
    found = spread(work(trace))
    assert found["max"] == max(workload(*pair) for pair in pairs)
    assert found["mean"] == pytest.approx(sum(workload(*pair) for pair in pairs) / len(pairs), rel=1e-15)


@pytest.mark.parametrize(
    "trace",
    [
        made([5], [7]),
        made([5], [7], [3]),
        made([5, 5], [7, 8], [3, 3]),
        made([5, 5], [7, 8], [0, 1e308]),
        made([5, 5, 5], [7, 7, 7], [0, 5e-324, 1e-323]),
        made([2**53] * 3, [2**53] * 3, [0, 1, 2]),
        made([10**15] * 3, [10**6, 10**6 + 1, 10**6 + 1], [0, 1e-80, 1e-60]),
        made([1, 1], [1, 1], [0, 1e80]),
    ],
)
def test_what_is_not_defined_is_null(trace: Trace, tmp_path: Path) -> None:
    from mcflow.plot.trace import save

    values = summarise(trace)
    json.dumps(values, allow_nan=False)
    assert values["spearman"] is None
    if trace.arrived is None or not trace.span:
        assert [values[name] for name in ("rate", "gap_cv", "rate_windows")] == [None] * 3
        assert set(values["dispersion"].values()) == {None}
    save(trace, tmp_path / "figure.png")


def test_sparkline() -> None:
    assert sparkline([0, 1, 4, 8]) == " ▂▅█"
    assert sparkline([0, 1, 4, 8], "ascii") == " :+#"
    assert sparkline([3]) == "█"


# Histograms


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", [0.3, 1.5])
def test_fit_round_trip(tmp_path: Path, seed: int, shape: float) -> None:
    draw = np.random.default_rng(seed)
    common = draw.normal(size=5000)
    prompt = np.ceil(np.exp(4 + shape * common)).astype(int)
    output = np.ceil(np.exp(5 - shape * common + 0.3 * draw.normal(size=5000))).astype(int)
    source, target = tmp_path / "trace.csv", tmp_path / "lengths.csv"
    source.write_text(PLAIN + "".join(f"{i},{a},{b}\n" for i, (a, b) in enumerate(zip(prompt, output, strict=True))))
    code, out, _ = call("trace", "fit", source, "-o", target)
    law = read_histogram(target)
    rows = sum(workload(*pair) for pair in zip(prompt.tolist(), output.tolist(), strict=True)) / 5000
    assert code == 0 and abs(float(law.mean_workload) / rows - 1) < 0.01
    assert law.mean_prompt == pytest.approx(prompt.mean(), rel=0.01)
    assert law.mean_output == pytest.approx(output.mean(), rel=0.01)
    assert law.weight.sum() == 5000 and (law.max_prompt, law.max_output) == (prompt.max(), output.max())
    assert f"{rows:.10g}" in out and f"{float(law.mean_workload):.10g}" in out
    # every row is in one cell, and a cell holds as many rows as it says
    inside = (prompt[:, None] >= law.prompt_min) & (prompt[:, None] <= law.prompt_max)
    inside &= (output[:, None] >= law.output_min) & (output[:, None] <= law.output_max)
    assert (inside.sum(1) == 1).all() and inside.sum(0).tolist() == law.weight.tolist()


def test_short_lengths_stay_points() -> None:
    trace = made(np.repeat(np.arange(1, 6), 5), np.tile(np.arange(1, 6), 5))
    fitted = fit(trace)
    assert fitted.law.points and fitted.law_work == fitted.rows_work
    assert len(fitted.law.weight) == 25


def test_bins_are_refined_until_the_means_are_met() -> None:
    # All at the ends of one bin of an eighth of a doubling, lopsided.
    fitted = fit(made([1000] * 99 + [1080], [1000] * 99 + [1080]))
    assert abs(fitted.law_work / fitted.rows_work - 1) < 0.01
    assert fitted.law.weight.sum() == 100


def test_a_fitted_histogram_runs(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(PLAIN + "0,3,4\n1,1,2\n2,3,4\n")
    assert call("trace", "fit", tmp_path / "trace.csv", "-o", tmp_path / "lengths.csv").code == 0
    (tmp_path / "w.yaml").write_text(
        "arrivals: {kind: poisson, rate: 1}\nlengths: {kind: histogram, file: lengths.csv}\n"
    )
    code, out, err = call("theory", "--workload", tmp_path / "w.yaml", "--capacity", 100, "--budget", 1, "--json")
    assert code == 0, err
    assert strict_json(out)


# The command line


def test_inspect_prints_tables_and_the_course_of_the_rate(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(PLAIN + "0,10,3\n1,20,0\n2,30,5\n10,40,6\n")
    code, out, err = call("trace", "inspect", path, "--time-unit", "s")
    assert code == 0
    assert "1 of 4 rows dropped (output 0: 1)" in err and "mcflow: " not in out
    for words in ("prompt l, tokens", "rows left out, output 0", "CV of gaps (Poisson: 1)", "token-slots"):
        assert words in out
    assert any(line.startswith("|█") and len(line) == 62 for line in out.splitlines())
    assert "rate in 60 windows of 0.1667 s" in out


def test_inspect_json(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(PLAIN + "0,10,3\n1,20,0\n2,30,5\n10,40,6\n11,1,1\n")
    code, out, err = call("trace", "inspect", path, "--json", "--start", "1", "--rows", "2")
    values = strict_json(out)
    assert code == 0 and values["rows"] == 2
    assert values["dropped"] == {"output 0": 1, "before start": 1, "after the rows asked for": 1}
    assert values["work"]["min"] == 30 * 5 + 15 and values["work"]["max"] == 40 * 6 + 21
    assert values["largest_total"] == 46 and values["span"] == 8 and values["rate"] == 1 / 8
    assert values["spearman"] == pytest.approx(1) and values["gap_cv"] is None
    assert values["time_unit"] == "slot" and values["length_unit"] == "tokens"
    assert [f"mcflow: {notice}" for notice in values["notices"]] == err.splitlines()


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_figures_are_written(tmp_path: Path, suffix: str) -> None:
    path, target = tmp_path / "$a$_b.csv", tmp_path / f"figure.{suffix}"
    path.write_text(PLAIN + "0,10,3\n2,30,5\n10,40,6\n")
    code, out, _ = call("trace", "inspect", path, "--figure", target)
    assert code == 0 and f"figure: {target}" in out
    heads = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}
    assert target.read_bytes().startswith(heads[suffix])
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([path.name, target.name])


def test_mistakes(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(PLAIN + "0,10,3\n2,30000000,5\n")
    before = path.read_bytes()
    inspect, lengths = ("trace", "inspect", path), ("trace", "fit", path)
    assert "5 rows asked for, but there are 2" in mistake(*inspect, "--rows", 5)
    assert "all arrive before start 9" in mistake(*inspect, "--start", 9)
    assert "unknown time unit" in mistake(*inspect, "--time-unit", "h")
    assert "must end in .png, .pdf, .svg" in mistake(*inspect, "--figure", tmp_path / "x.gif")
    assert "there is no folder" in mistake(*inspect, "--figure", tmp_path / "absent" / "x.png")
    assert "no such file" in mistake("trace", "inspect", tmp_path / "absent.csv")
    assert "row 2: prompt 30000000: a length histogram holds lengths up to" in mistake(
        *lengths, "-o", tmp_path / "x.csv"
    )
    assert "already an input" in mistake(*lengths, "-o", path)
    assert "must end in .csv" in mistake(*lengths, "-o", tmp_path / "x.csv.gz")
    assert "--output" in mistake(*lengths)
    assert [p.name for p in tmp_path.iterdir()] == ["trace.csv"] and path.read_bytes() == before


def test_every_faulty_file_is_refused_in_one_line_or_described(shared: Path, tmp_path: Path) -> None:
    files = sorted((shared / "faults").glob("*-*"))
    assert files
    for path in files:
        code, out, err = call("trace", "inspect", path, "--json", "--figure", tmp_path / "x.png")
        assert code in (0, 2), (path, err)
        if code == 0:
            values = strict_json(out)
            assert values["work"]["min"] >= 2 and values["rows"] >= 1
            assert call("trace", "inspect", path).code == 0
        else:
            assert out == "" and err.count("\n") == 1 and err.startswith(f"mcflow: {path}: ")


def test_figures_of_the_shared_traces(shared: Path) -> None:
    """Against those that were computed apart from this program."""
    known = json.loads((shared / "traces" / "stats.json").read_text())
    for name in ("azure2023_conv", "azure2023_code", "mooncake_conversation", "llmservingsim_sharegpt300"):
        values, apart = summarise(read_trace(shared / "traces" / f"{name}.csv.gz", "s")), known[name]
        assert values["spearman"] == pytest.approx(apart["spearman"], abs=1e-9)
        assert values["largest_total"] == apart["max_l_plus_o"]
        assert values["work"]["mean"] == pytest.approx(apart["w"]["mean"])
        assert values["prompt"]["p95"] == pytest.approx(apart["l"]["q95"])
        assert values["gap_cv"] == pytest.approx(apart["arrivals"]["iat_cv"], rel=5e-3)
        for width, value in values["dispersion"].items():
            other = apart["arrivals"].get(f"iod_{width}s")
            assert (value is None) == (other is None)
            if value is not None:
                assert value == pytest.approx(other, rel=1e-6)
