"""Consumers of queues and streams: `contrib.events`."""
