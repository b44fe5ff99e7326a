"""What is known of a model before its weights are read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.models.config import ModelConfig, read_config, read_json
from workers.models.errors import ModelNotFound
from workers.models.gguf import convert_card


@dataclass(frozen=True)
class ModelCard:
    """A model's shape and the texts around it."""

    config: ModelConfig
    tokenizer_path: Path  # a tokenizer.json
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    eos_token_ids: tuple[int, ...]


def read_card(path: Path, *, cache_dir: Path) -> ModelCard:
    """The card of a checkpoint directory or GGUF file; the latter's tokenizer is rebuilt into `cache_dir` once."""
    directory = convert_card(path, cache_dir) if path.is_file() else path
    if not (directory / "tokenizer.json").exists():
        raise ModelNotFound(f"{directory} has no tokenizer.json")
    config = read_config(directory)
    tokenizer_config = read_json(directory / "tokenizer_config.json")
    return ModelCard(
        config=config,
        tokenizer_path=directory / "tokenizer.json",
        chat_template=_chat_template(directory, tokenizer_config),
        bos_token=_token_text(tokenizer_config.get("bos_token")),
        eos_token=_token_text(tokenizer_config.get("eos_token")),
        eos_token_ids=config.eos_token_ids,
    )


def _chat_template(directory: Path, tokenizer_config: dict[str, Any]) -> str | None:
    file = directory / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):  # several, by name
        template = next((each["template"] for each in template if each["name"] == "default"), None)
    return template


def _token_text(token: str | dict[str, Any] | None) -> str | None:
    return token["content"] if isinstance(token, dict) else token
