"""What Headrace is measured beside: Celery as it comes, a task per request. The URL of its Redis is in BENCH_REDIS."""

import os
import time

from celery import Celery

URL = os.environ.get("BENCH_REDIS", "redis://")

app = Celery("stock", broker=URL, backend=URL)
app.conf.broker_connection_retry_on_startup = True


@app.task(name="null")  # type: ignore[untyped-decorator]
def null(prompt: list[int], max_tokens: int) -> float:
    """Compute nothing; the Unix time at which it ran."""
    return time.time()
