"""Which frequencies of a tilted usage can be left out: those proven to vanish.

Every age contributes a factor of modulus at most 1, so the ages looked at so far bound the
modulus of the whole product. Nothing is cut off unseen: a law on a coarser lattice
(prompts of 10 and 12 tokens only) has full peaks far from frequency 0.
"""

from __future__ import annotations

import numpy as np

from mcflow.errors import InputError
from mcflow.theory.activations import Independent, Phases
from mcflow.theory.runs import Array
from mcflow.theory.tilted import Tilted

#: Logarithm of the modulus taken for 0; a double holds 1e-16 of the answer, this is 1e-20.
VANISHED = -46.0
#: Complex numbers per array in a pass over frequencies.
BLOCK = 2**20
#: Ages looked at together.
CHUNK = 24
#: Runs of prompts beyond which a Fourier transform per age is cheaper than their sum.
MANY = 1500
#: Complex numbers held for the ages of one window transformed whole.
MOST = 2**25
#: Most characteristic functions of one age at one frequency evaluated for an answer: a minute or two.
WORK = 4 * 10**9


class TooLargeError(InputError):
    """The exact law of this workload would take too long; the bounds do not."""

    def __init__(self, size: str) -> None:
        super().__init__(f"the exact law would need {size}; use the bounds, or coarser tokens")


class Screen:
    """The search for frequencies that stay, for one tilted law."""

    def __init__(self, tilted: Tilted, activations: Independent | Phases) -> None:
        self.tilted, self.activations, self.lattice = tilted, activations, tilted.lattice
        self.chunks = self._scattered()
        self.work = 0

    def spend(self, frequencies: int, rows: int) -> None:
        """Count work about to be done.

        Raises
        ------
        TooLargeError
            Beyond `WORK`.
        """
        self.work += frequencies * rows
        if self.work > WORK:
            raise TooLargeError(f"more than {WORK:.0e} values of characteristic functions")

    def stays(self) -> Array:
        """Frequencies ``2 pi step / points`` in [0, pi] that stay: steps, int64, ascending."""
        runs = self.tilted.ages.size
        step = np.arange(self.lattice.points // 2 + 1)
        if not self.chunks:
            return step
        left, seen = np.zeros(len(step)), 0
        fits = self.activations.span * len(step) <= MOST
        if len(runs) > MANY and fits and (runs == 1).all():
            left, seen = self._by_fourier(left)
            step, left = step[left > VANISHED], left[left > VANISHED]
        size = max(64, min(4096, BLOCK // max(CHUNK, len(runs))))
        every = np.sort(np.concatenate(self.chunks))
        kept = []
        for start in range(0, len(step), size):
            part = step[start : start + size]
            ceiling = self.tilted.ceiling(int(part[0]))
            if self._modulus(every, ceiling[every, None])[0] <= VANISHED:
                break
            kept.append(self._by_runs(part, left[start : start + size], self.chunks[seen:]))
        return np.concatenate(kept) if kept else step[:0]

    def _by_runs(self, step: Array, left: Array, chunks: list[Array]) -> Array:
        """Steps that stay, from sums over the runs; ``left`` is what earlier ages leave."""
        runs = self.tilted.runs(step)
        total, seen = self.tilted.alive.sum(), 0.0
        for rows in chunks:
            self.spend(len(step), len(rows))
            left = left + self._modulus(rows, self.tilted.some(rows, runs, step))
            stay = left > VANISHED
            if not stay.all():
                step, runs, left = step[stay], runs[:, stay], left[stay]
            seen += self.tilted.alive[rows].sum()
            # When the rest will not rule out even half of them, looking on costs more than it saves.
            if not len(step) or np.median(left) * total > VANISHED * seen:
                break
        return step

    def _by_fourier(self, left: Array) -> tuple[Array, int]:
        """Logarithm of the modulus left at every frequency, and how many chunks it took.

        For laws of many single prompt lengths (the rows of a trace): each age is folded on
        the lattice and transformed whole, until few frequencies are left.
        """
        from scipy.fft import rfft

        tilted, points = self.tilted, self.lattice.points
        for seen, rows in enumerate(self.chunks, start=1):
            self.spend(len(left), len(rows))
            for window in rows.reshape(-1, self.activations.span):
                waves = np.empty((len(window), len(left)), dtype=np.complex64)
                for wave, row in zip(waves, window, strict=True):
                    place = (tilted.ages.last + tilted.ages.age[row]) % points
                    folded = np.bincount(place, tilted.weights(np.array([row]))[0], minlength=points)
                    # Single precision tells what vanishes; the transform's other sense of
                    # rotation makes a conjugate, of the same modulus.
                    wave[:] = rfft(folded.astype(np.float32))
                    wave += tilted.still[row]
                left = left + self._modulus(window, waves)
            if np.count_nonzero(left > VANISHED) * 64 < len(left) or np.median(left) > VANISHED * seen / 16:
                break
        return left, seen

    def _modulus(self, rows: Array, waves: Array) -> Array:
        return self.activations.log_modulus(waves, self.tilted.log_moment[rows])

    def _scattered(self) -> list[Array]:
        """Ages minus 1 in chunks of whole windows, the most telling ones first.

        A random order weighted by the chance to be alive (drawn from the golden ratio, so
        always the same): early ages see the prompts, later ones the ends of the outputs,
        and ages that hardly any request reaches see nothing.
        """
        span = self.activations.span
        windows = self.tilted.ages.count // span
        alive = self.tilted.alive[: windows * span].reshape(windows, span).mean(axis=1)
        spread = np.arange(1, windows + 1) * 0.6180339887498949 % 1.0
        order = np.argsort(-np.log(spread) / alive)
        group = max(1, CHUNK // span)
        return [(order[i : i + group, None] * span + np.arange(span)).reshape(-1) for i in range(0, windows, group)]
