"""The project that the variants serve: one view that inserts one row, guarded in each way."""
