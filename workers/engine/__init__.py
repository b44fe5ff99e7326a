"""The continuous-batching engine: one thread, no I/O, token ids in, token ids out.

Read `engine.py` first: `Engine.step()` is the picture of the system. It knows no text, no database and no queue.
"""
