"""Files, as OpenAI has them."""
