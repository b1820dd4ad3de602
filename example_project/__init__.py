"""A small payments shop that shows django-idempotency at work; meant to be copied."""
