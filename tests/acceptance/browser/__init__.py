"""R89 and the admin in a real browser, against the example project under real servers."""

from __future__ import annotations
