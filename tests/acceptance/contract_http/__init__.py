"""The rules of HTTP that a socket or a server's process decides, under gunicorn and uvicorn."""
