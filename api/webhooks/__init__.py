"""Webhooks, as their owners manage them."""
