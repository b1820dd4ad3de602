"""The rules of HTTP, from outside: the example project and the tests' views, under both servers."""

from __future__ import annotations

#: Set for the served views: where they are told to go on, by a file.
DIRECTORY_VARIABLE = "IDEMPOTENCY_TEST_CONTRACT_DIRECTORY"
