"""Tests of guarded views of every kind: plain and DRF, sync and async, decorator and middleware."""

from __future__ import annotations
