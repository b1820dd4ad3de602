"""What the rules of HTTP are run against: the tests' own views, and the example project."""

from __future__ import annotations

#: Set for the served views: where they are told to go on, by a file.
DIRECTORY_VARIABLE = "IDEMPOTENCY_TEST_CONTRACT_DIRECTORY"
