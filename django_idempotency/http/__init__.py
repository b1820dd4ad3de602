"""Requests and responses: what every kind of guarded view shares."""
