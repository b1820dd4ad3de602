"""The shop's settings, with a hash of passwords that takes no time: each request has one."""

from __future__ import annotations

from example_project.settings import *  # noqa: F403

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
