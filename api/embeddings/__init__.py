"""Embeddings, as OpenAI has them."""
