"""The shop: accounts, and three ways in which money moves."""
