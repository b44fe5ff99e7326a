"""One webhook attempt in one line."""

import base64
import json
from collections.abc import Sequence

from workers.webhooks import Reply, post

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef01234567").decode()
BODY = json.dumps({"type": "job.succeeded", "data": {"id": "job_1", "text": "naïve ✓"}}, ensure_ascii=False).encode()


def send(url: str, *, timeout_seconds: float = 20, allow_private: bool = True, secrets: Sequence[str] = ()) -> Reply:
    return post(
        url,
        BODY,
        event_id="evt_1",
        secrets=secrets or [SECRET],
        timeout_seconds=timeout_seconds,
        allow_private=allow_private,
    )
