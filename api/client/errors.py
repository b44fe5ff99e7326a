"""What a call of the client can end with instead of an answer. Each says what is wrong and, where there is one, the way
out."""

from api.client.types import BatchState, Job, Json

TRY_AGAIN = (429, 502, 503, 504)  # too busy, or away: the same request may succeed later


class HeadraceError(Exception):
    """Any of the errors below. `message` says what is wrong, `hint` the way out; as text it is both."""

    is_passing = False  # whether trying again may help
    retry_after_seconds = 0.0  # when to, where the server said that

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message} {hint}")
        self.message = message
        self.hint = hint


class ServerUnreachable(HeadraceError):
    """Nothing answers at the URL, or the connection broke before an answer was whole."""

    def __init__(self, message: str, *, is_passing: bool = True) -> None:
        hint = "Start one with `make run` or `headrace up`, or name another with --url, url= or HEADRACE_URL."
        super().__init__(message, hint=hint)
        self.is_passing = is_passing


class RequestRefused(HeadraceError):
    """The server answered with an error: its status, its code for programs, and the whole of it as JSON."""

    def __init__(self, status: int, body: Json, *, hint: str | None = None, request_id: str | None = None) -> None:
        super().__init__(str(body["error"]["message"]), hint=hint)
        self.status = status
        self.body = body
        self.code: str | None = body["error"].get("code")
        self.request_id = request_id
        self.is_passing = status in TRY_AGAIN


class NoModel(HeadraceError):
    """No model was named, and none is served."""

    def __init__(self) -> None:
        super().__init__("No model is served yet.", hint="`headrace status` shows when one is there.")


class WaitTimeout(HeadraceError, TimeoutError):
    """The time that the caller would wait is over. What was waited for, a job or a batch, goes on."""

    def __init__(self, waited_for: Job | BatchState) -> None:
        message = f"{waited_for['id']} is still {waited_for['status']}."
        super().__init__(message, hint="It goes on: wait again, or cancel it.")


class BatchFailed(HeadraceError):
    """The batch's input was found wrong and none of it ran. `state["errors"]` names lines and reasons."""

    def __init__(self, state: BatchState) -> None:
        errors = state["errors"]["data"] if state["errors"] else []
        where = [f"line {error['line']}: " if error["line"] else "" for error in errors]
        reasons = " ".join(place + error["message"] for place, error in zip(where, errors, strict=True))
        super().__init__(f"{state['id']} failed, and nothing of it ran: {reasons[:1000]}")
        self.state = state
