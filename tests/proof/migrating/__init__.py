"""The guides to migrations: processes of all deployments at once, in the other package's place."""

from __future__ import annotations
