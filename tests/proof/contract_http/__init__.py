"""The whole contract of HTTP on both projects, under both servers."""
