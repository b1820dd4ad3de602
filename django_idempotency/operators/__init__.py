"""Operators: finding a record, saying what it means, deciding about it; for admin and commands."""
