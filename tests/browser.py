"""A headless Chromium for the tests of the report; they are skipped where there is none."""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MILLISECONDS = 300_000  # for one step, on a machine that may be busy
MISSING = "needs Chromium (apt-get install chromium) and playwright (pip install '.[dev]')"

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None or importlib.util.find_spec("playwright") is None, reason=MISSING
)


@contextmanager
def chromium() -> Iterator["Browser"]:
    """A browser of its own; as root it runs without its sandbox, which root cannot have."""
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments, timeout=MILLISECONDS)
        try:
            yield browser
        finally:
            browser.close()
