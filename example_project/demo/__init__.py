"""The demo: a story about a payment API, over HTTP (``python -m example_project.demo``)."""
