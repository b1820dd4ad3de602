"""The shop: accounts and three ways in which money moves; a checkout, webhooks and quotes."""
