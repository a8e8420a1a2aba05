"""(root seed, workload key, replication, purpose) -> independent random streams.

Workload streams never depend on the policy, so all policies of an experiment see the same
arrivals and lengths (common random numbers), and never on rates, so that points along a
lambda axis share them too. Policy randomness has a stream of its own. Nothing depends on the
number of jobs, the order of work or what ran before.
"""

from __future__ import annotations

import hashlib

import numpy as np

PURPOSES = {"arrivals": 1, "lengths": 2, "policy": 3, "predictions": 4, "importance": 5, "splitting": 6}

#: Number of the first pilot replication: their streams are those of no replication.
FIRST_PILOT = 1 << 20


def stream(seed: int, key: str, replication: int, purpose: str) -> np.random.PCG64DXSM:
    """Return the bit generator of one purpose in one replication.

    Parameters
    ----------
    seed : int
        Root seed of the experiment, >= 0.
    key : str
        What identifies the workload (lengths), any text.
    replication : int
        Number of the replication, from 0.
    purpose : str
        ``arrivals`` (one word a slot), ``lengths``, ``policy`` (one word a slot),
        ``predictions`` (one word a request), ``importance`` (samples of the saturated process), or
        ``splitting`` (who goes on from a level).
    """
    digest = hashlib.sha256(key.encode()).digest()[:16]
    words = [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4)]
    entropy = np.random.SeedSequence([seed, *words, replication, PURPOSES[purpose]])
    return np.random.PCG64DXSM(entropy)
