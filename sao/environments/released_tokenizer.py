"""The tokenizer of a released model, with which tasks on a data set turn text into ids."""

from functools import cache
from typing import TYPE_CHECKING, Any

from sao.config_files import ConfigError

if TYPE_CHECKING:
    from sao.config_scales import Model


@cache
def released_tokenizer(model: "Model") -> Any:
    """The model's transformers tokenizer, from its folder or the Hub's cache.

    Raises ConfigError, with the mend, where there is none, or where it has more tokens than the model.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model.path, revision=model.revision)
    except (OSError, ValueError) as error:
        said = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"model.path: {model.path}: no tokenizer can be loaded ({said}); {how_to_fetch(model)}"
        ) from error
    if model.vocabulary_size is not None and len(tokenizer) > model.vocabulary_size:
        raise ConfigError(
            f"model.vocabulary_size: {model.vocabulary_size} is below the {len(tokenizer)} tokens of the "
            f"tokenizer of {model.path}; state it as the model's config.json has it"
        )
    return tokenizer


def how_to_fetch(model: "Model") -> str:
    """What brings a released model here."""
    revision = f" --revision {model.revision}" if model.revision else ""
    return f"fetch it: hf download {model.path}{revision}"


def token_texts(tokenizer: Any, vocabulary_size: int | None = None) -> tuple[str, ...]:
    """Text of each token id; models may have more ids than their tokenizer, which are named by number."""
    texts = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    unused = range(len(tokenizer), vocabulary_size or len(tokenizer))
    return (*texts, *(f"<id {token}>" for token in unused))
