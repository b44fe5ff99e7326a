"""Waits for a job while showing, on stderr, its place in line and when it will probably start."""

from typing import TYPE_CHECKING

from api.commands.render import other_outputs, stderr, summary, waiting_line, write_output

if TYPE_CHECKING:
    from api.client import Headrace, Job


def wait_for_end(client: "Headrace", job_id: str) -> "Job":
    """The job once it has ended."""
    with _Line() as line:
        for job in client.watch(job_id):
            line.show(job)
    return job


def stream_text(client: "Headrace", job_id: str) -> "Job":
    """Write the job's text to stdout as it comes; returns the job once it has ended.

    Of several outputs the first is written so, and then the others whole.
    """
    with _Line() as line:
        for job in client.watch_start(job_id):
            if job["status"] == "queued":
                line.show(job)
    stream, text = client.stream(job_id), "\n"
    for text in stream:
        write_output(text)
    write_output("" if text.endswith("\n") else "\n")
    write_output(other_outputs(stream.job))
    stderr().print(summary(stream.job))
    return stream.job


class _Line:
    """A spinner with a line of text on a terminal; elsewhere a line whenever the job has moved."""

    def __init__(self) -> None:
        self._console = stderr()
        self._status = self._console.status("") if self._console.is_terminal else None
        self._moved_to: object = None

    def __enter__(self) -> "_Line":
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, job: "Job") -> None:
        """Say where the job is, unless it has ended."""
        if job["status"] not in ("queued", "running"):
            return
        if self._status is not None:
            self._status.update(waiting_line(job))
            self._status.start()
        elif self._moved_to != (job["status"], job["position"]):
            self._moved_to = (job["status"], job["position"])
            self._console.print(waiting_line(job))
