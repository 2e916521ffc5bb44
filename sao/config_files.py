"""YAML files of rows and scales: reading, merging, and messages that name file, key and mend."""

import difflib
import json
import math
import re
from collections.abc import Hashable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENTS = ROOT / "experiments"

KeyPath = tuple[str, ...]
ModelType = TypeVar("ModelType", bound=BaseModel)


class ConfigError(ValueError):
    """A user's mistake in a configuration: for each fault one line "file: key: what is wrong; the mend"."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML with repeated keys refused and floats as in YAML 1.2, where 2e-3 is a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            name = self.construct_object(key_node, deep=True)
            if name in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {name} is stated twice; keep one", key_node.start_mark
                )
            seen.add(name)
        return super().construct_mapping(node, deep)


_Loader.add_constructor(
    "tag:yaml.org,2002:map", lambda loader, node: loader.construct_mapping(node, deep=True)
)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
)


def shown(path: Path) -> str:
    """The path as messages print it: relative to the repository where it lies inside."""
    base = EXPERIMENTS.parent
    return str(path.relative_to(base)) if path.is_relative_to(base) else str(path)


def closest(name: str, known: Iterable[str]) -> str:
    """ "; did you mean NAME?", or the list of what there is where nothing is similar."""
    names = sorted(known)
    if near := difflib.get_close_matches(name, names, n=1, cutoff=0.6):
        return f"; did you mean {near[0]}?"
    return f"; known: {', '.join(names)}"


def names_in(folder: str) -> tuple[str, ...]:
    """Names of the YAML files in a folder of `experiments`, sorted."""
    return tuple(sorted(path.stem for path in (EXPERIMENTS / folder).glob("*.yaml")))


def file_of(folder: str, name: str) -> Path:
    """The file of a row or scale; ConfigError with the closest name where there is none."""
    if name not in (known := names_in(folder)):
        what = folder.removesuffix("s")
        raise ConfigError(f"{shown(EXPERIMENTS / folder)}: no {what} {name}{closest(name, known)}")
    return EXPERIMENTS / folder / f"{name}.yaml"


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping a YAML file holds; ConfigError where it is missing, not YAML, or no mapping."""
    try:
        stamp = path.stat()
        return _parse(path, stamp.st_mtime_ns, stamp.st_size)
    except OSError as error:
        raise ConfigError(f"{shown(path)}: cannot be read: {error.strerror}") from None


@lru_cache(maxsize=256)
def _parse(path: Path, _modified: int, _size: int) -> dict[str, Any]:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except UnicodeDecodeError:
        raise ConfigError(f"{shown(path)}: is not UTF-8 text; save it as UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{shown(path)}: {where}{problem}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{shown(path)}: must hold keys and values, and holds {_name_of(content)}")
    return content


class Merged:
    """Content of one or more files laid over each other, and the file that each leaf key comes from."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: dict[str, Any] = {}
        self.origins: dict[KeyPath, Path] = {}

    def lay(self, path: Path, content: dict[str, Any]) -> None:
        """Lays a file's keys over those present (see `_lay_block`)."""
        self.path = path
        self.content = self._lay_block(self.content, content, (), path)

    def _lay_block(self, base: Any, over: dict[str, Any], at: KeyPath, path: Path) -> dict[str, Any]:
        """A block that states another `kind`, or an `environment`, stands whole; others merge key by key."""
        if (
            not isinstance(base, dict)
            or "environment" in over
            or over.get("kind", base.get("kind")) != base.get("kind")
        ):
            self._forget(at)
            base = {}
        merged = dict(base)
        for name, value in over.items():
            here = (*at, str(name))
            if isinstance(value, dict):
                merged[name] = self._lay_block(merged.get(name), value, here, path)
            else:
                self._forget(here)
                merged[name] = value
                self.origins[here] = path
        return merged

    def _forget(self, at: KeyPath) -> None:
        for known in [known for known in self.origins if known[: len(at)] == at]:
            del self.origins[known]

    def origin(self, at: KeyPath) -> Path:
        """The file that states a key, else one that states a key below it, else the file laid last."""
        if at in self.origins:
            return self.origins[at]
        below = [path for known, path in self.origins.items() if known[: len(at)] == at]
        return below[-1] if below else self.path


def validated(model: type[ModelType], merged: Merged, **extra: Any) -> ModelType:
    """The model built from merged files and `extra`, which no file may state; ConfigError for any fault."""
    for name in extra.keys() & merged.content.keys():
        raise ConfigError(
            f"{shown(merged.origin((name,)))}: {name}: is the file's name and no key; remove it"
        )
    try:
        content = json.dumps({**merged.content, **extra})
    except TypeError as error:
        raise ConfigError(f"{shown(merged.path)}: {error}; use text, numbers, lists and mappings") from None
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        lines = dict.fromkeys(_message(model, merged, fault) for fault in error.errors())
        raise ConfigError("\n".join(lines)) from None


def _message(model: type[BaseModel], merged: Merged, fault: ErrorDetails) -> str:
    at = _key_path(fault["loc"], merged.content)
    known = fields_at(model, merged.content, at[:-1])
    value = fault.get("input")
    file = merged.origin(at)
    text = str(fault["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    if fault["type"] == "extra_forbidden":
        text = "unknown key" + _other_kind(model, merged.content, at, known) if known else "unknown key"
    elif fault["type"] == "missing":
        text = "is missing; state it"
    elif fault["type"] == "union_tag_invalid":
        tag = "environment" if "environment" in fault["ctx"]["discriminator"] else "kind"
        at = (*at, tag)
        expected = [name.strip(" '") for name in fault["ctx"]["expected_tags"].split(",")]
        text = f"unknown {tag} {fault['ctx']['tag']}{closest(fault['ctx']['tag'], expected)}"
    elif fault["type"] == "union_tag_not_found":
        text = f"lacks {fault['ctx']['discriminator']}; state it"
    elif fault["type"] == "literal_error":
        text = f"must be {fault['ctx']['expected']}, and is {_name_of(value)}"
    elif fault["type"] == "value_error" and (named := text.split(":")[0]) in _dotted(merged.content, at):
        at, file = (*at, *named.split(".")), merged.path
        text = text.split(":", 1)[1].strip()
    elif fault["type"] != "value_error":
        text = text.replace("Tuple", "list").replace("an object", "a mapping")
        text = f"{text.replace(' after validation', '')}, and is {_name_of(value)}"
    return ": ".join([shown(file), *([".".join(at)] if at else []), text])


def _other_kind(model: type[BaseModel], content: Any, at: KeyPath, known: Iterable[str]) -> str:
    """Mend for an unknown key: the kind it belongs to, or the closest known key."""
    block = _block_at(content, at[:-1])
    kind = block.get("kind")
    if kind is not None:
        owners = [variant for variant in _variants(model, content, at[:-1]) if at[-1] in variant.model_fields]
        if owners:
            names = " or ".join(str(get_args(_annotation(owner, "kind"))[0]) for owner in owners)
            return (
                f" of kind {kind}: it belongs to {names}, and a row has one kind; state that or drop the key"
            )
    return closest(at[-1], known)


def _key_path(location: Iterable[int | str], content: Any) -> KeyPath:
    """Drops the union tags that pydantic puts into a location, by walking the content along."""
    parts = list(location)
    path: list[str] = []
    for position, part in enumerate(parts):
        inside = (
            {str(name): value for name, value in content.items()} if isinstance(content, dict) else content
        )
        last = position == len(parts) - 1
        if isinstance(inside, dict) and (str(part) in inside or last):
            path.append(str(part))
            content = inside.get(str(part))
        elif not isinstance(inside, dict) and (isinstance(part, int) or last):
            path.append(str(part))
            content = None
    return tuple(part for part in path if part != "[key]")


def _block_at(content: Any, at: KeyPath) -> dict[str, Any]:
    for part in at:
        content = content.get(part) if isinstance(content, dict) else None
    return content if isinstance(content, dict) else {}


def _dotted(content: Any, at: KeyPath, prefix: str = "") -> Iterator[str]:
    """Dotted names of all keys below a place of the content."""
    for name, value in _block_at(content, at).items():
        yield f"{prefix}{name}"
        if isinstance(value, dict):
            yield from (f"{prefix}{name}.{inner}" for inner in _dotted(value, ()))


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Models of an annotation such as `Annotated[A | B, ...]` or `A | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Annotated, Union, UnionType):
        return [model for inner in get_args(annotation) for model in models_in(inner)]
    return []


def _variants(model: type[BaseModel], content: Any, at: KeyPath) -> list[type[BaseModel]]:
    """All models that may stand at a place, whatever kind the content states there."""
    models: list[type[BaseModel]] = [model]
    for depth, part in enumerate(at):
        owner = _stated(models, _block_at(content, at[:depth]))
        models = (
            models_in(owner.model_fields[part].annotation) if owner and part in owner.model_fields else []
        )
    return models


def _annotation(model: type[BaseModel], name: str) -> Any:
    """Annotation of a model's field; None where the model has no such field."""
    field = model.model_fields.get(name)
    return field.annotation if field else None


def _stated(models: list[type[BaseModel]], block: dict[str, Any]) -> type[BaseModel] | None:
    """The variant whose `kind` or `environment` the block states; one without either always fits."""
    for model in models:
        tags = [tag for tag in ("kind", "environment") if tag in model.model_fields]
        if not tags or any(block.get(tag) in get_args(_annotation(model, tag)) for tag in tags):
            return model
    return None


def fields_at(model: type[BaseModel], content: Any, at: KeyPath) -> dict[str, Any]:
    """Fields by key of the model that stands at a place of the content; empty where none does."""
    stated = _stated(_variants(model, content, at), _block_at(content, at))
    return dict(stated.model_fields) if stated else {}


def _name_of(value: Any) -> str:
    """A value as a YAML file would state it."""
    if value is None:
        return "null"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value, default=str)
