"""Rules of the engine that need a process or a server of their own."""
