"""The rules of HTTP in this process, on PostgreSQL."""
