"""Which packed weights stay on the disk: of each checkpoint as it is now, those used last."""

import logging
from pathlib import Path

from workers.models.cache import remove, targets_in

log = logging.getLogger(__name__)

NUM_KEPT = 4  # and more only while more are in use
SOURCE = "source"  # a file beside the weights: the path of the checkpoint that they are of


def remove_unused(target: Path, checkpoint: Path) -> None:
    """Make room for `target`, which is packed from `checkpoint` or will be: nothing that somebody uses is deleted.

    But what the checkpoint was before it changed, what is in the layout of another version, and of the others all
    except those used last. A target is called <files>-<layout>-<packing>.
    """
    others = [other for other in targets_in(target.parent) if other != target]
    for rank, other in enumerate(others, start=1):
        if (rank >= NUM_KEPT or _is_outdated(other, target, checkpoint)) and remove(other):
            log.info("packed weights are removed", extra={"path": str(other)})


def _is_outdated(other: Path, target: Path, checkpoint: Path) -> bool:
    (files, layout), (files_now, layout_now) = (path.name.split("-")[:2] for path in (other, target))
    return layout != layout_now or (files != files_now and _source(other) == str(checkpoint.resolve()))


def _source(target: Path) -> str:
    path = target / SOURCE
    return path.read_text() if path.exists() else ""
