"""Fixtures of the guarded views: those of tests/unit/http."""

from __future__ import annotations

from tests.unit.http.conftest import api, atomic_requests, in_progress, mode, mount, policy, runs  # noqa: F401
