"""Text in, token ids out, and back, one token at a time. Imports nothing else of Headrace's."""
