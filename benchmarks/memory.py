"""Peak memory against the horizon: it must not grow."""

from __future__ import annotations

from benchmarks.probe import fresh
from benchmarks.report import Section, against

#: Largest ratio of peaks that counts as equal.
AIM = 1.2


def run(quick: bool) -> Section:
    """A short and a long run of the paper's classes, each in a fresh process."""
    section = Section(
        "memory",
        "5. Peak memory of a fresh process (paper classes, blocks of 4096 slots)",
        ("slots", "peak, MB", "run, s"),
    )
    lengths = (10**6,) if quick else (10**6, 10**8)
    fresh(1000)  # the long compilation, if one is due, is not what is measured
    answers = [fresh(slots) for slots in lengths]
    for slots, answer in zip(lengths, answers, strict=True):
        section.rows.append([f"{slots:.0e}", f"{answer['peak'] / 1e6:.1f}", f"{answer['run']:.2f}"])
        section.numbers[f"{slots:.0e}"] = {"peak_bytes": answer["peak"], "run_seconds": answer["run"]}
    if quick:
        section.notes.append("1e8 slots skipped (--quick)")
    else:
        ratio = answers[-1]["peak"] / answers[0]["peak"]
        section.numbers["ratio"] = ratio
        section.notes.append(f"ratio {ratio:.3f}, aim <= {AIM}: {against(ratio, AIM, at_most=True)}")
    return section
