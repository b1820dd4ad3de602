"""Where records live: one module per kind of store."""
