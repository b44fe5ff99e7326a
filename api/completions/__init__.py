"""Completions, as OpenAI has them."""
