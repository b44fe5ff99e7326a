"""uvicorn, as it serves the application: it does not wait for event streams when it is to stop."""

import socket
import sys
from contextlib import suppress

import uvicorn
from fastapi import FastAPI

GRACE_SECONDS = 5  # for the requests that are being answered
STARTUP_FAILED = 3  # exit status, as uvicorn's own command has it


class Server(uvicorn.Server):
    """Ends the event streams first: those of waiting jobs have no end of their own, and readers resume elsewhere."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app = self.config.app
        assert isinstance(app, FastAPI)
        app.state.services.end_streams()
        await super().shutdown(sockets)


def serve(app: FastAPI, *, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,  # `db.logs` has set logging up, for uvicorn too
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = Server(config)
    with suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        sys.exit(STARTUP_FAILED)
