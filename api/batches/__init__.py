"""Batches: their API, and the process that runs them."""
