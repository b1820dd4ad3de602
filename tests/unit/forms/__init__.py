"""Plain Django views that get forms and uploads, and what of a request counts there."""

from __future__ import annotations
