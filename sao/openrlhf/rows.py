"""Trains rows of a scale one after the other, to see that each of them runs: no scores are compared.

    python -m sao.openrlhf.rows --scale openrlhf_one_update                  every row of the scale
    python -m sao.openrlhf.rows --scale openrlhf_smoke grpo_dis vapo         these

What a row starts from is prepared first. Rows that are finished are not trained again.
"""

import argparse
import sys
from pathlib import Path

from sao import prepare, train
from sao.config import ConfigError, RunConfig, load_scale, resolve


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns 0 where every row came to its end, 1 where one failed, 2 for a user's mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m sao.openrlhf.rows", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("rows", nargs="*")
    parser.add_argument("--scale", required=True)
    parser.add_argument("--results", default="results")
    options = parser.parse_args(arguments)
    try:
        scale = load_scale(options.scale)
        runs = [resolve(row, scale.name, scale.seeds[0]) for row in options.rows or scale.rows()]
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    codes = {run.row: train_row(run, options.results) for run in runs}
    failed = [row for row, code in codes.items() if code]
    print(f"{len(runs) - len(failed)} of {len(runs)} rows ran; failed: {', '.join(failed) or 'none'}")
    return int(bool(failed))


def train_row(run: RunConfig, results: str) -> int:
    """Prepares and trains one row; returns the exit code of the first command that failed, or 0."""
    if (Path(results) / run.scale / "runs" / run.row / f"seed{run.seed}" / "seal.json").exists():
        return 0
    common = ["--scale", run.scale, "--results", results]
    for step in run.preparation_steps:
        words = prepare.step_arguments(step).split()
        if code := prepare.main([*words, "--task", run.task.name, *common]):
            return code
    return train.main(["--row", run.row, "--seed", str(run.seed), *common])


if __name__ == "__main__":
    sys.exit(main())
