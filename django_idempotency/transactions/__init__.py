"""Transactions on connections of Django: which are open, whose they are, how they end."""
