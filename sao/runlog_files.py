"""Files of a run directory on disk: atomic writes, appended lines (plain or gzip) and cutting them back."""

import contextlib
import errno
import fcntl
import gzip
import io
import json
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_MENDS = {
    errno.ENOSPC: "free some space and start the run again: it continues from its last checkpoint",
    errno.EDQUOT: "free some of the quota and start the run again: it continues from its last checkpoint",
    errno.EACCES: "make the folder writable",
    errno.EROFS: "choose a writable folder with --results",
}


class RunError(Exception):
    """A run directory that cannot be used as it is; the message names the file and the mend."""


class RepeatedKeyError(ValueError):
    """A record with a column twice, as no writer makes it."""


class RunFailure(RuntimeError):
    """The run cannot reach its end; the message says at which step and why."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns a failed write (a full disk above all) into a RunError that names the path and the mend."""
    try:
        yield
    except OSError as error:
        mend = _MENDS.get(error.errno or 0, "mend that and start the run again")
        raise RunError(f"{path}: cannot be written: {error.strerror or error}; {mend}") from error


def write_atomic(path: Path, content: bytes) -> None:
    """Writes a whole file under a temporary name, then renames it: readers see the old or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path):
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync(path.parent)


def write_json(path: Path, content: Any) -> None:
    """Writes indented JSON atomically."""
    write_atomic(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


def archive_advice(path: Path) -> str:
    """What to do about a damaged run: the archive command of the run directory in which `path` lies."""
    parts = path.resolve().parts
    seeds = [place for place, part in enumerate(parts) if re.fullmatch(r"seed\d+", part)]
    place = seeds[-1] if seeds else 0
    if place < 4 or parts[place - 2] != "runs":
        return "archive the run and train it again"
    scale, _, row, seed = parts[place - 3 : place + 1]
    command = f"python -m sao.runlog archive {row} --scale {scale} --seed {seed.removeprefix('seed')}"
    results = Path(*parts[: place - 3])
    if results != Path("results").resolve():
        command += f" --results {results}"
    return f"archive the run ({command}) and train it again"


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; RunError where it is damaged."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, OSError) as error:
        raise RunError(f"{path}: cannot be read: {error}; {archive_advice(path)}") from None
    if not isinstance(content, dict):
        raise RunError(f"{path}: holds no JSON object; {archive_advice(path)}")
    return content


def sync(path: Path) -> None:
    """Forces a file's content, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Forces everything below a folder to the disk."""
    for path in sorted(folder.rglob("*")):
        sync(path)
    sync(folder)


def append_lines(path: Path, lines: list[str]) -> None:
    """Appends lines and flushes them, to a .gz file as one more gzip member; a failed append is undone."""
    content = "".join(f"{line}\n" for line in lines).encode()
    if path.suffix == ".gz":
        content = compressed(content)
    with writing(path), open(path, "ab") as file:
        size = file.tell()
        try:
            file.write(content)
            file.flush()
        except OSError:
            with contextlib.suppress(OSError):
                os.truncate(path, size)
            raise


def compressed(content: bytes) -> bytes:
    """One gzip member without time or file name: the same content gives the same bytes."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=buffer, mode="wb", mtime=0) as file:
        file.write(content)
    return buffer.getvalue()


def whole(path: Path) -> bytes:
    """A file's bytes; RunError where a folder has its name."""
    if path.is_dir():
        raise RunError(f"{path}: is a folder and should be a file; restore it, or {archive_advice(path)}")
    return path.read_bytes()


def chunks(path: Path) -> Iterator[tuple[int, bytes]]:
    """(offset of its end, text) of each complete line of a plain file, or gzip member of a .gz file."""
    data = whole(path)
    end = 0
    while end < len(data):
        if path.suffix != ".gz":
            newline = data.find(b"\n", end)
            if newline < 0:
                return
            start, end = end, newline + 1
            yield end, data[start:end]
            continue
        member = zlib.decompressobj(wbits=31)
        try:
            text = member.decompress(data[end:])
        except zlib.error as error:
            raise RunError(f"{path}: damaged after byte {end}: {error}; {archive_advice(path)}") from None
        if not member.eof:
            return
        end = len(data) - len(member.unused_data)
        yield end, text


def ends_incomplete(path: Path) -> bool:
    """Whether a table ends in an incomplete line or gzip member, as a killed writer leaves it."""
    if not path.exists():
        return False
    ends = [end for end, _ in chunks(path)]
    return (ends[-1] if ends else 0) < path.stat().st_size


def read_records(path: Path, strict: bool = False) -> list[dict[str, Any]]:
    """Records of a .jsonl or .jsonl.gz file; RunError with the line's number where one is damaged.

    An incomplete last line, as a killed writer leaves it, is left out; `strict` makes it an error.
    """
    if not path.exists():
        return []
    if path.suffix == ".gz":
        parts = list(chunks(path))
        text = b"".join(part for _, part in parts)
        complete = (parts[-1][0] if parts else 0) == path.stat().st_size
    else:
        data = whole(path)
        text = data[: data.rfind(b"\n") + 1]
        complete = len(text) == len(data)
    if strict and not complete:
        raise RunError(f"{path}: its last line is incomplete; restore the file, or {archive_advice(path)}")
    return [parsed(path, number, line) for number, line in enumerate(text.splitlines(), start=1)]


def _refuse_constant(name: str) -> float:
    """JSON has no NaN or infinity; the log writes null, so one in a table was put there by hand."""
    raise ValueError(f"{name} is no JSON number")


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object's entries; RepeatedKeyError where a key stands twice: json would take the last."""
    entries = dict(pairs)
    if len(entries) < len(pairs):
        names = [name for name, _ in pairs]
        raise RepeatedKeyError(f"column {next(name for name in names if names.count(name) > 1)} stands twice")
    return entries


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_once_each)


def decoded(line: bytes) -> Any:
    """The JSON on a line of a table; ValueError for other text, RepeatedKeyError where a key stands twice."""
    return _DECODER.decode(line.decode())


def parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """The record on a line; RunError with file and line number where it holds none."""
    try:
        record = decoded(line)
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            return record
        problem = "no record with a step"
    except RepeatedKeyError as error:
        problem = str(error)
    except ValueError:
        problem = "not valid JSON"
    raise RunError(f"{path}: line {number}: {problem}; restore the file, or {archive_advice(path)}")


def cut_back(path: Path, keep: Callable[[int], bool]) -> None:
    """Drops all lines from the first one whose step is not to be kept, and an incomplete last line."""
    if not path.exists():
        return
    kept_to, number, rest = 0, 0, []
    for end, text in chunks(path):
        lines = text.splitlines()
        flags = [keep(parsed(path, number + 1 + index, line)["step"]) for index, line in enumerate(lines)]
        if not all(flags):
            rest = [line.decode() for line in lines[: flags.index(False)]]
            break
        number += len(lines)
        kept_to = end
    with writing(path):
        os.truncate(path, kept_to)
        sync(path)
    if rest:
        append_lines(path, rest)


def lock(path: Path) -> int:
    """Takes a file's exclusive lock and returns its descriptor; RunError where another process has it."""
    with writing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    for wait in (0.05, 0.1, 0.2, 0.4, None):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except OSError:
            if wait is not None:  # a reader that tests the lock holds it for an instant
                time.sleep(wait)
    os.close(descriptor)
    raise RunError(f"{path.parent}: another process is working on this run; wait for it or stop it")


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock file's lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
