"""Chat completions, as OpenAI has them."""
