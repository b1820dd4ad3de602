"""A command as a shell expects it: in English, and quiet where the reader of its output is gone."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.core.management.base import BaseCommand
from django.utils import translation

__all__ = ["ShellCommand"]

#: The exit code of a program that SIGPIPE ends, which Python ignores.
_READER_GONE = 141


class ShellCommand(BaseCommand):
    """A command whose output is read by people and programs alike."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Write nowhere where the shell has closed the output (``>&-``)."""
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:  # and not a file, as its type says
                setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        super().__init__(*args, **options)

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Speak English, whatever the project's language: scripts look for these words."""
        with translation.override(None):
            return super().execute(*args, **options)

    def run_from_argv(self, argv: list[str]) -> None:
        """End as other programs do in ``… | head``; what was done stays done."""
        try:
            try:
                super().run_from_argv(argv)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's own flush
            sys.exit(_READER_GONE)
