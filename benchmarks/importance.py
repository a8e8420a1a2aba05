"""Importance sampling of the saturated process: time to 0.5 %, and relative error in a second, against depth."""

from __future__ import annotations

from benchmarks.report import Section, against
from mcflow.budget import Budget
from mcflow.theory.importance import importance_estimate
from mcflow.workload.files import shipped_histogram
from mcflow.workload.lengths import LengthLaw

#: Relative standard error to reach, and the seconds that it may take on one core.
ERROR, AIM = 0.005, 10.0

PAPER = LengthLaw.classes([10, 10, 10], [20, 40, 60], [1, 1, 1])
LMSYS = shipped_histogram("lmsys_words_q500_a600")


def _cases() -> list[tuple[str, LengthLaw, Budget, int]]:
    twelve = Budget.of(12, "constant")
    cases = [("paper, constant 12", PAPER, twelve, m) for m in (17094, 18044, 19105, 20300, 23200)]
    cases += [("paper, credit 12.345678901234", PAPER, Budget.of("12.345678901234"), m) for m in (18378, 21720)]
    cases += [("paper, Poisson 5", PAPER, Budget.of(5, "poisson"), m) for m in (8000, 12000, 20000)]
    cases += [("paper, uniform 0..10", PAPER, Budget.of(5, "uniform"), m) for m in (8000, 14000)]
    for slack in (3, 6):
        b = 16492 * (10 - slack) / (10 * LMSYS.mean_workload)
        for law in ("bernoulli", "credit"):
            cases.append((f"LMSYS, {law}, slack 0.{slack}", LMSYS, Budget.of(b, law), 16492))
    return cases


def run(seed: int) -> Section:
    """Every case once to the error and once for a second, its exact law beside it."""
    section = Section(
        "importance",
        "8. Importance sampling of P(U > M), saturated process, one core",
        ("lengths, budget", "M", "exact", "z", "seconds to 0.5 %", "aim", "samples", "us/sample", "error in 1 s"),
    )
    importance_estimate(PAPER, 17094, Budget.of(12), seed=seed, samples=1000)  # compiles
    scores = []
    for name, law, budget, capacity in _cases():
        found = importance_estimate(law, capacity, budget, seed=seed, relative_error=ERROR)
        timed = importance_estimate(law, capacity, budget, seed=seed, seconds=1.0, exact=found.exact)
        assert found.exact is not None
        assert found.z is not None
        assert timed.relative_error is not None
        assert abs(found.z) < 5, f"{name}, M = {capacity}: z = {found.z}"
        scores.append(found.z)
        section.rows.append(
            [
                name,
                str(capacity),
                f"{found.exact:.3e}",
                f"{found.z:+.2f}",
                f"{found.seconds:.2f}",
                against(found.seconds, AIM, at_most=True),
                f"{found.samples:,}",
                f"{found.seconds / found.samples * 1e6:.2f}",
                f"{timed.relative_error:.2%}",
            ]
        )
        section.numbers[f"{name}, M = {capacity}"] = {
            "exact": found.exact,
            "z": found.z,
            "seconds": found.seconds,
            "samples": found.samples,
            "relative_variance": found.samples / found.effective_samples - 1,
            "relative_error_in_a_second": timed.relative_error,
        }
    score = sum(z * z for z in scores)
    section.numbers["chi_square"] = score
    section.notes.append(f"sum of z^2 {score:.1f} on {len(scores)} degrees of freedom; seed {seed}")
    section.notes.append("samples needed grow like the square root of log 1/P: twice the depth, 1.4 times the samples")
    return section
