"""Rows of public data sets, from the Hugging Face Hub, a file or a local copy, and their lock files."""

import contextlib
import fcntl
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

UNVERIFIED = "unverified"
BUILDERS = {".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}
CSV_OPTIONS = {"keep_default_na": False}  # an answer may be "None"


class DataError(ValueError):
    """Data that cannot be used; the one-line message names the data and the mend."""


def read_pins(path: Path) -> dict[str, dict[str, Any]]:
    """A file of pins or a lock file; empty where there is none."""
    return (yaml.safe_load(path.read_text(encoding="utf-8")) or {}) if path.exists() else {}


def recorded(key: str, pin: Mapping[str, Any], locked: Mapping[str, Any]) -> str:
    """What the file of pins states of `key`, or else the lock file; UNVERIFIED where neither does."""
    return str(pin[key] if pin[key] != UNVERIFIED else locked.get(key, UNVERIFIED))


def check_digest(
    name: str,
    source: str,
    digest: str,
    pin: Mapping[str, Any],
    locked: Mapping[str, Any],
    files: tuple[Path, Path],
) -> None:
    """Raise DataError where rows have another SHA-256 than recorded; `files`: of pins, and the lock file."""
    expected = recorded("sha256", pin, locked)
    if expected in (digest, UNVERIFIED):
        return
    where = files[0] if pin["sha256"] != UNVERIFIED else files[1]
    raise DataError(
        f"{name} from {source}: the rows have SHA-256 {digest[:12]}..., {where.name} has "
        f"{expected[:12]}...; the data changed: use the recorded revision, or review the change and record it"
    )


def first_reading(revision: str, pin: Mapping[str, Any], locked: Mapping[str, Any]) -> bool:
    """Whether what was read is to be recorded: nothing is yet, or no revision where one is known now."""
    unread = recorded("sha256", pin, locked) == UNVERIFIED
    return unread or locked.get("revision") == UNVERIFIED != revision


def licence_on_card(hub: str, revision: str) -> str:
    """The licence that a set's card on the Hub states, or "unverified" where it cannot be read."""
    from huggingface_hub import HfApi

    try:
        card = HfApi().dataset_info(hub, revision=revision, timeout=30).card_data
    except Exception:  # the Hub's client has no common class of errors; the rows were read already
        return UNVERIFIED
    licence = card.get("license") if card is not None else None
    return str(licence) if licence else UNVERIFIED


def record(path: Path, name: str, entry: dict[str, Any]) -> None:
    """Add an entry to a lock file, in whole or not at all; the workflow fetches several sets at once."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # file systems of a network may refuse to lock a folder
            fcntl.flock(folder, fcntl.LOCK_EX)
        content = {**read_pins(path), name: entry}
        unfinished = path.with_suffix(".part")
        unfinished.write_text(yaml.safe_dump(content, sort_keys=True), encoding="utf-8")
        unfinished.replace(path)
    finally:
        os.close(folder)


def download(
    name: str,
    pin: Mapping[str, Any],
    revision: str,
    cache_dir: Path | None,
    mend: str = "name its folder with --data-dir",
) -> tuple[Iterable[Mapping[str, Any]], str, str]:
    """Rows, source and revision from the network or the cache of `datasets`.

    Raises DataError, whose message says which copy to make by hand, and then `mend`.
    """
    import datasets

    datasets.disable_progress_bars()
    cache = str(cache_dir) if cache_dir is not None else None
    address = pin.get("hub") or pin["url"].format(revision=revision)
    try:
        if "hub" in pin:
            if revision == UNVERIFIED:
                from huggingface_hub import HfApi

                revision = str(HfApi().dataset_info(pin["hub"], timeout=30).sha)
            rows = datasets.load_dataset(
                pin["hub"], pin.get("config"), split=pin["split"], revision=revision, cache_dir=cache
            )
        else:
            rows = datasets.load_dataset(
                "csv", data_files=address, split="train", cache_dir=cache, **CSV_OPTIONS
            )
    except Exception as problem:  # network, hub and builder errors have no common base
        reason = first_line(problem)
        columns = ", ".join(pin["columns"].values())
        raise DataError(
            f"{name}: {address} can neither be downloaded nor found in the cache ({reason}); copy it by "
            f"hand as {name}.jsonl, .csv or .parquet with the columns {columns} and {mend}"
        ) from None
    return rows, address, revision


def read_folder(name: str, folder: Path, cache_dir: Path | None) -> tuple[Iterable[Mapping[str, Any]], str]:
    """Rows of the data's file in a folder, and the file's name; DataError with the mend."""
    import datasets

    datasets.disable_progress_bars()
    cache = str(cache_dir) if cache_dir is not None else None
    found = [folder / f"{name}{suffix}" for suffix in BUILDERS if (folder / f"{name}{suffix}").exists()]
    if len(found) != 1:
        state = "several files" if found else "no file"
        wanted = " or ".join(f"{name}{suffix}" for suffix in BUILDERS)
        raise DataError(f"{name}: {state} in {folder}; it has to hold one of {wanted}")
    builder = BUILDERS[found[0].suffix]
    options = CSV_OPTIONS if builder == "csv" else {}
    try:
        rows = datasets.load_dataset(
            builder, data_files=str(found[0]), split="train", cache_dir=cache, **options
        )
    except Exception as problem:
        raise DataError(f"{found[0]}: not readable as {builder}: {first_line(problem)}") from None
    return rows, found[0].name


def first_line(problem: Exception) -> str:
    """The first line of an exception's text, or its kind."""
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0][:120]
