"""Adapters for packages that a project may or may not use: one module each."""
