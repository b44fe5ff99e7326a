"""Responses, as OpenAI has them: a job in its newest dress."""
