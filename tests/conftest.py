"""Shared test settings: hypothesis without deadlines (kernels compile on first use), paths."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("mcflow", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("mcflow")

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The project's data folder beside the checkout; a user does not have it."""
    if not SHARED.is_dir():
        pytest.skip("the project's data folder ../shared is not here")
    return SHARED
