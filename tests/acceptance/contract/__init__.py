"""The contract of stores by processes: its rules about them, and its pytest plugin."""
