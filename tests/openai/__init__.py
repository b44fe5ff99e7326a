"""The unmodified `openai` package against real processes."""
