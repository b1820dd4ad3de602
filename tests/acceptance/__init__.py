"""Tests of whole processes: servers, workers and browsers that are started, killed and watched."""

from __future__ import annotations
