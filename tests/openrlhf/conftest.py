"""These tests share helpers with the local engine's."""

import multiprocessing.util
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture(scope="module", autouse=True)
def temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where all temporary files of a module's tests and of what they start lie; short enough for sockets."""
    tmp_path_factory.getbasetemp()  # pytest keeps its own where they were, and so does multiprocessing
    multiprocessing.util.get_temp_dir()
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="tests-") as folder:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", None)
        yield Path(folder)
