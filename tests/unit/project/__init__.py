"""The docs, the rules and the packages of the project."""

from __future__ import annotations
