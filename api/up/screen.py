"""What `headrace up` shows: what it waits for, then the screen with everything needed to begin, then what happens."""

import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console
from rich.status import Status
from rich.text import Text

from db.settings import Settings

LABEL_WIDTH = 10
DEFAULT_HOST, DEFAULT_PORT, DEFAULT_DATA_DIR = (
    Settings.model_fields[name].default for name in ("host", "port", "data_dir")
)
PROMPT = "The old mill stands where the river bends, and its wheel"


@dataclass(frozen=True)
class Welcome:
    """Everything on the first screen."""

    version: str
    api_url: str
    flower_url: str
    data_dir: Path  # as the user wrote it
    api_key: str
    webhook_secret: str
    model: str
    max_model_len: int


class Screen:
    """Writes to a terminal, with a spinner, or to a file, with one line for each new thing waited for."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self.status: Status | None = None  # the spinner, while something is waited for
        self.waiting_for = ""

    def wait_for(self, what: str, detail: str = "") -> None:
        """Show what is waited for; `detail` may change often and shows only beside a spinner."""
        if not self.console.is_terminal:
            if what != self.waiting_for:
                self._line(Text(f"{what} ..."))
        else:
            room = max(self.console.width - len(what) - 8, 0)
            text = Text.assemble(what, (f": {detail[:room]}" if detail else "", "dim"))
            self.status = self.status or self.console.status(text)
            self.status.update(text)
            self.status.start()
        self.waiting_for = what

    def stop_waiting(self) -> None:
        """Take the spinner away."""
        if self.status is not None:
            self.status.stop()
        self.status = None
        self.waiting_for = ""

    def welcome(self, welcome: Welcome) -> None:
        """Print the first screen."""
        self.stop_waiting()
        self._line(Text.assemble("\n", ("Headrace", "bold cyan"), (f" {welcome.version}", "dim"), "\n"))
        self._field("API", welcome.api_url, f"docs at {welcome.api_url}/docs")
        self._field("Flower", welcome.flower_url)
        self._field("API key", welcome.api_key, f"kept in {welcome.data_dir / 'api-key'}")
        self._field("Webhooks", welcome.webhook_secret, f"signs them; kept in {welcome.data_dir / 'webhook-secret'}")
        self._field("Model", welcome.model, f"{welcome.max_model_len:,} tokens")
        self._field("Logs", str(welcome.data_dir / "run" / "*.log"))
        self._line(Text("\nSubmit a job, from any terminal:\n", style="bold"))
        self._line(Text(curl_line(welcome), style="green"))
        self._line(Text("\nOr submit one and watch its text arrive:\n", style="bold"))
        self._line(Text(f"{submit_line(welcome)}\n", style="green"))

    def say(self, message: str) -> None:
        """Print a line of what happened."""
        self._line(Text(message))

    def refuse(self, reason: str) -> None:
        """Print, on standard error, the one line that says why it does not run."""
        self.stop_waiting()
        Console(stderr=True, highlight=False).print(Text(f"headrace: {reason}", style="red"), soft_wrap=True)

    def _field(self, label: str, value: str, note: str = "") -> None:
        self._line(Text.assemble((f"  {label:<{LABEL_WIDTH}}", "dim"), value, (f"   {note}" if note else "", "dim")))

    def _line(self, text: Text) -> None:
        # Soft-wrapped: what is copied from the screen has no line breaks that are not in it.
        self.console.print(text, soft_wrap=True)


def curl_line(welcome: Welcome) -> str:
    """A command that submits a job, whole, for any POSIX shell."""
    body = json.dumps({"model": welcome.model, "prompt": PROMPT, "max_tokens": 64})
    headers = [f"Authorization: Bearer {welcome.api_key}", "Content-Type: application/json"]
    options = [part for header in headers for part in ("-H", shlex.quote(header))]
    return " ".join(["curl", f"{welcome.api_url}/v1/jobs", *options, "-d", shlex.quote(body)])


def submit_line(welcome: Welcome) -> str:
    """The same with our own command line, which finds the key in the data directory."""
    command = Path(sys.executable).with_name("headrace")
    if command.is_relative_to(Path.cwd()):
        command = command.relative_to(Path.cwd())
    host = urlsplit(welcome.api_url).hostname
    given = {
        "HEADRACE_URL": (welcome.api_url, f"http://{DEFAULT_HOST}:{DEFAULT_PORT}"),
        "HEADRACE_HOST": (host or "", DEFAULT_HOST),  # the key is for where this machine's server listens
        "HEADRACE_DATA_DIR": (str(welcome.data_dir), str(DEFAULT_DATA_DIR)),
    }
    # Another terminal may not have our variables.
    variables = [f"{name}={shlex.quote(value)}" for name, (value, default) in given.items() if value != default]
    return " ".join([*variables, shlex.quote(str(command)), "submit", "--tail", shlex.quote(PROMPT)])
