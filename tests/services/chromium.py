"""A Chromium of our own, without a window, that talks to nobody but the servers of the tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

from tests.services.packages import find

# It looks for nothing outside of this machine.
FLAGS = [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Playwright would turn it off: with it, the back button shows a page as it was left.
AS_PEOPLE_HAVE_IT = ["--disable-back-forward-cache"]


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the system's Chromium with an empty profile; all of it ends with the block."""
    program = find("chromium")
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # root cannot make one
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program,
            args=[*FLAGS, *sandbox],
            ignore_default_args=AS_PEOPLE_HAVE_IT,
        )
        try:
            yield browser
        finally:
            browser.close()
