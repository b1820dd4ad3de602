"""Everything that needs no HTTP: keys, fingerprints, policies, the engine and its public calls."""

from __future__ import annotations
