"""What goes in and out of the file API, as OpenAI spells it."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import Path
from pydantic import BaseModel, Field

from api.pages import Listed, Page
from db.ids import public_id
from db.models import File

PREFIX = "file-"
FILE_EXAMPLE = "file-0193e4c2a1b47c3d8e5f60718293a4b5"
SHORTEST_EXPIRY, LONGEST_EXPIRY = 3600, 30 * 24 * 3600  # seconds

UploadPurpose = Literal["batch", "user_data", "assistants", "vision", "fine-tune", "evals"]
FileId = Annotated[str, Path(description="The file's id.", examples=[FILE_EXAMPLE])]


class FileObject(Listed):
    """A file."""

    id: str = Field(description="Its id.", examples=[FILE_EXAMPLE])
    object: Literal["file"] = Field("file", description="Always `file`.")
    bytes: int = Field(description="Its size; that of a running batch's file grows with each line.", examples=[1024])
    created_at: int = Field(description="Unix time in seconds.")
    expires_at: int | None = Field(description="When it is removed; null: never.")
    filename: str = Field(description="As uploaded.", examples=["requests.jsonl"])
    purpose: str = Field(description="What it is for; `batch_output` of what a batch wrote.", examples=["batch"])
    status: Literal["uploaded", "processed"] = Field(
        description="`uploaded`: its batch is running, and has written what there is; `processed` otherwise."
    )


class FileList(Page[FileObject]):
    """A page of files."""

    data: list[FileObject] = Field(description="The files.")


class DeletedFile(BaseModel):
    """The answer to a deletion."""

    id: str = Field(description="Id of the file that was deleted.")
    object: Literal["file"] = Field("file", description="Always `file`.")
    deleted: Literal[True] = Field(True, description="Always true.")


def file_view(file: File) -> FileObject:
    """The file as clients see it."""
    return FileObject(
        id=public_id(PREFIX, file.id),
        bytes=file.num_bytes,
        created_at=int(file.created_at.timestamp()),
        expires_at=unix_time(file.expires_at),
        filename=file.filename,
        purpose=file.purpose,
        status="processed" if file.status == "processed" else "uploaded",
    )


def unix_time(moment: datetime | None) -> int | None:
    """Seconds, as OpenAI tells times."""
    return None if moment is None else int(moment.timestamp())
