"""The shop of tests/acceptance/clients."""

from __future__ import annotations

from tests.acceptance.clients.conftest import shop

__all__ = ["shop"]
