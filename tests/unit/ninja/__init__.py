"""Guarded operations of django-ninja."""
