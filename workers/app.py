"""The engine worker's Celery app: the common one, with the engine as its pool and the puller as its feed.

celery -A workers.app worker
"""

import logging

from celery import signals

from db.broker import app
from db.logs import show_fields
from db.settings import get_settings
from workers.active_queues import report_tier_queues
from workers.consumer_step import ConsumerStep, tiers_read
from workers.generate import generate
from workers.task_events import repeat_after_outages

__all__ = ["app", "generate"]

app.conf.update(
    worker_pool="workers.pool:EnginePool",
    worker_concurrency=get_settings().max_num_seqs,
    worker_direct=True,  # a queue of its own, so that the stock transport has something else to read than tier lists
    worker_prefetch_multiplier=1,
    worker_disable_rate_limits=True,  # a limited task would be held without being run
    worker_redirect_stdouts=False,
)
app.steps["consumer"].add(ConsumerStep)
report_tier_queues(tiers_read)
repeat_after_outages(app)
signals.after_setup_logger.connect(show_fields, weak=False)

# The tracer times the task's body, which only reports; "succeeded in 0.0003s" of a minute's work would mislead.
logging.getLogger("celery.app.trace").setLevel(logging.WARNING)
logging.getLogger("torch").setLevel(logging.WARNING)
