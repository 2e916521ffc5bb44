"""The real commands through the real Snakefile: three rows at scale smoke, from warm start to tables."""

import csv
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from workflow_project import Project, job_counts, wait_for

from sao import config

ROWS = ("sao", "grpo_dis", "vapo")


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project(tmp_path_factory.mktemp("smoke") / "project", ROWS, standins=False)
    code, output = made.run()
    assert code == 0, output
    return made


def table_rows(project: Project, name: str) -> dict[str, dict[str, str]]:
    """The last line of each row: our score over all tasks and the hardest band."""
    with project.path(f"{name}.csv").open() as file:
        return {line["row"]: line for line in csv.DictReader(file)}


def test_grid_writes_runs_tables_figures_and_claims(grid: Project) -> None:
    assert grid.seals() == set(ROWS)
    results = grid.path("results/smoke")
    for table in ("table1", "table3", "table4", "table5", "claims"):
        assert all((results / "tables" / f"{table}.{kind}").stat().st_size for kind in ("csv", "md", "tex"))
    for figure in ("figure1", "figure3", "figure4", "figure6", "ratio_and_staleness"):
        assert all(
            (results / "figures" / f"{figure}.{kind}").stat().st_size for kind in ("pdf", "svg", "png", "csv")
        )
    rows = table_rows(grid, "results/smoke/tables/table4")
    assert rows["vapo"]["status"] == "1 of 1 seeds" and rows["vapo"]["runs"] == "runs/vapo/seed0"
    assert rows["running_mean"]["note"] == "not run"
    metrics = (results / "runs/sao/seed0/metrics.jsonl").read_text().splitlines()
    settings = config.resolve("sao", "smoke", 0)
    due = list(range(-settings.critic_only_steps, settings.training.updates))
    assert [json.loads(line)["step"] for line in metrics] == due
    log = (results / "logs/train/sao.seed0.log").read_text()
    assert "reward" in log and "left" in log


def test_page_of_a_finished_row_trains_nothing(grid: Project) -> None:
    code, output = grid.run("results/smoke/rows/vapo.md")
    assert code == 0, output
    assert job_counts(output) == {"row": 1}
    assert "Ablations" in grid.path("results/smoke/rows/vapo.md").read_text()


def test_plots_from_logged_runs_need_no_torch(grid: Project) -> None:
    grid.module("sao.runlog", "publish", "--scale", "smoke")
    grid.write("torch.py", "raise ImportError('plots from logged runs must not need torch')\n")
    try:
        made = ("results/plots/smoke/tables/table4.csv", "results/plots/smoke/figures/figure3.pdf")
        code, output = grid.run(*made, "--config", "runs=results/logged/smoke")
    finally:
        grid.path("torch.py").unlink()
    assert code == 0, output
    assert job_counts(output) == {"table": 1, "figure": 1}
    live, logged = (
        table_rows(grid, f"results/{folder}/tables/table4") for folder in ("smoke", "plots/smoke")
    )
    assert logged["vapo"] == live["vapo"]


def test_killed_run_logs_what_an_undisturbed_one_logs(grid: Project) -> None:
    run = grid.path("results/smoke/runs/grpo_dis/seed0")
    undisturbed = evaluations(run)
    shutil.rmtree(run)
    seal = "results/smoke/runs/grpo_dis/seed0/seal.json"
    process = grid.start(seal)
    wait_for(run / "metrics.jsonl")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (run / "seal.json").exists()

    code, output = grid.run(seal)
    assert code == 0, output
    assert job_counts(output) == {"train": 1}
    assert evaluations(run) == undisturbed


@pytest.mark.slow
def test_every_row_finishes_at_scale_smoke(tmp_path: Path) -> None:
    every = Project(tmp_path / "project", config.row_names(), standins=False, writing=True)
    code, output = every.run("all", "beyond")
    assert code == 0, output
    assert every.seals() == set(config.row_names())


def evaluations(run: Path) -> list[str]:
    return (run / "evaluations.jsonl").read_text().splitlines()
