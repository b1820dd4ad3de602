"""Tests of guarded Celery tasks: rules in this process, and real workers that are killed."""
