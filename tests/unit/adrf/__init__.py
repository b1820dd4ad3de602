"""Guarded views of adrf, the coroutines of Django REST framework."""
