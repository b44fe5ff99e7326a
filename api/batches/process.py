"""The process `headrace batches`: the services of the API without its HTTP, and the runner of batches."""

import asyncio
import contextlib
import signal
from pathlib import Path

from api.batches.runner import BatchRunner
from api.metrics import Metrics
from api.services import open_services
from db.settings import Settings

ALIVE_SECONDS = 10  # between two touches of its file, by which a scheduler sees that it is not stuck


def run_batches(settings: Settings) -> None:
    """Run batches until SIGTERM or SIGINT. What is broken off then, another process or the next start does again."""
    asyncio.run(_run(settings))


async def _run(settings: Settings) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with open_services(settings, Metrics()) as services:
        tasks = {
            asyncio.create_task(work)
            for work in (BatchRunner(services).run(), _show_life(settings.data_dir / "run"), stopping.wait())
        }
        done, going = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in going:
            task.cancel()
        await asyncio.gather(*going, return_exceptions=True)
        for task in done:
            task.result()  # raises what ended it; whoever started this process starts it again


async def _show_life(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    while True:
        with contextlib.suppress(OSError):  # a full disk is no reason to stop
            (directory / "batches-alive").touch()
        await asyncio.sleep(ALIVE_SECONDS)
