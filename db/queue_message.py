"""One job's message, byte for byte what celery 5.7 and kombu 5.7 would put on a Redis list, and its `task-sent` event.

Written by hand, because a submit has no time for Celery's own client. A test holds it to what `apply_async` sends.
"""

import base64
import json
import os
import socket
from dataclasses import dataclass
from time import altzone, localtime, time, timezone
from typing import Any, Self
from uuid import UUID, uuid4

from db.settings import TIERS

TASK = "generate"
ORIGIN = "gen@headrace"  # in the place of the sending process
EVENT_EXCHANGE = "celeryev"
EVENT_ROUTING_KEY = "task.sent"


@dataclass(frozen=True)
class Ready:
    """A queued job that may start: what its message says."""

    job_id: UUID
    model: str
    tier: int
    ready_at: float  # Unix seconds, Postgres clock
    num_blocks: int

    @classmethod
    def of(cls, row: Any) -> Self:
        """The message of a ready row: a `Job`, or a result row with its id, model, tier, ready_at and num_blocks."""
        assert row.ready_at is not None, "a parked job has no message"
        return cls(row.id, row.model, row.tier, row.ready_at.timestamp(), row.num_blocks)


def queue_name(model: str, tier: int) -> str:
    """The tier's list, which is also the Celery queue that Flower shows."""
    return f"{TASK}.{model}.{TIERS[tier]}"


def encode(ready: Ready) -> bytes:
    """The message: the same bytes for the same job, so that it can be taken out of its list.

    `ready_at` and `num_blocks` come last, where the Lua scripts find them without parsing JSON.
    """
    task_id, queue = str(ready.job_id), queue_name(ready.model, ready.tier)
    headers: dict[str, Any] = {
        "lang": "py",
        "task": TASK,
        "id": task_id,
        "shadow": None,
        "eta": None,
        "expires": None,
        "group": None,
        "group_index": None,
        "retries": 0,
        "timelimit": [None, None],
        "root_id": task_id,
        "parent_id": None,
        "argsrepr": f"('{task_id}',)",
        "kwargsrepr": "{}",
        "origin": ORIGIN,
        "ignore_result": True,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
    }
    properties = {
        "correlation_id": task_id,
        "reply_to": "",  # no result is sent back
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": queue},
        "priority": 0,
        "body_encoding": "base64",
        "delivery_tag": task_id,
        "ready_at": round(ready.ready_at, 6),
        "num_blocks": ready.num_blocks,
    }
    embed = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    return _envelope([[task_id], {}, embed], headers, properties)


def encode_sent_event(ready: Ready) -> bytes:
    """The event by which Flower learns of a queued job."""
    task_id, queue = str(ready.job_id), queue_name(ready.model, ready.tier)
    body = {
        "hostname": _node_name(),
        "utcoffset": (altzone if localtime().tm_isdst else timezone) / 3600,
        "pid": os.getpid(),
        "clock": 1,  # receivers put their own in its place: clients take no part in the logical clock
        "uuid": task_id,
        "root_id": task_id,
        "parent_id": None,
        "name": TASK,
        "args": f"('{task_id}',)",
        "kwargs": "{}",
        "retries": 0,
        "eta": None,
        "expires": None,
        "queue": queue,
        "exchange": "",
        "routing_key": queue,
        "timestamp": time(),
        "type": "task-sent",
    }
    properties = {
        "delivery_mode": 1,
        "delivery_info": {"exchange": EVENT_EXCHANGE, "routing_key": EVENT_ROUTING_KEY},
        "priority": 0,
        "body_encoding": "base64",
        "delivery_tag": str(uuid4()),
    }
    return _envelope(body, {"hostname": _node_name()}, properties)


def event_channel(database: int) -> str:
    """The pub/sub channel on which Celery's event receivers listen for it."""
    return f"/{database}.{EVENT_EXCHANGE}/{EVENT_ROUTING_KEY}"


def _envelope(body: Any, headers: dict[str, Any], properties: dict[str, Any]) -> bytes:
    message = {
        "body": base64.b64encode(json.dumps(body).encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": headers,
        "properties": properties,
    }
    return json.dumps(message).encode()


def _node_name() -> str:
    """Who sent it, as Celery names its clients. Read each time: a process may be a fork of the one that imported us."""
    return f"gen{os.getpid()}@{socket.gethostname()}"
