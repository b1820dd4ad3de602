"""Settings for mypy: the tests' own and the example's apps, so that it knows all models."""

from __future__ import annotations

from example_project import settings as example
from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as TESTED_APPS

INSTALLED_APPS = [*dict.fromkeys([*TESTED_APPS, *example.INSTALLED_APPS])]
