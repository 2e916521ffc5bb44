"""Command that builds the tiny tasks; see the package's text."""

import argparse
from pathlib import Path

from evaluation.swe.tiny_tasks import build_tiny_tasks

parser = argparse.ArgumentParser(
    prog="python -m evaluation.swe.tiny_tasks", description="Build the tiny tasks."
)
parser.add_argument("folder", type=Path, help="where tasks.jsonl and images/ are written")
target = parser.parse_args().folder
target.mkdir(parents=True, exist_ok=True)
for task in build_tiny_tasks(target):
    print(task.instance_id, task.base_commit)
