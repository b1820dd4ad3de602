"""What holds between real processes: races, kills, stalls, clocks and a database that crashes."""

from __future__ import annotations
