"""Mathematics evaluations of a tiny released model and of a run's weights, served by the real vLLM."""

import shutil
from pathlib import Path

import pytest
from released import MOST_TOKENS, make_scales, problems

from evaluation.math import plan, protocol
from evaluation.math.runner import main
from evaluation.math.store import read_evaluation, read_samples
from evaluation.math.synthetic import problem_of
from sao import config_files

KNOWN, RUNS = 2, 2


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scale whose released model knows the benchmark's problems, and a run with the same weights."""
    monkeypatch.setattr(config_files, "EXPERIMENTS", make_scales(tmp_path))
    known = [problem_of(one, "aime_2025") for one in problems()[:KNOWN]]
    monkeypatch.setattr(plan, "load_synthetic", lambda name: known)
    benchmark = protocol.Benchmark("aime_2025", "AIME 2025", "AIME2025", KNOWN, RUNS)
    monkeypatch.setitem(protocol.BENCHMARKS, "aime_2025", benchmark)
    weights = tmp_path / "results" / "tiny_math" / "runs" / "sao" / "seed0" / "weights" / "step-2"
    shutil.copytree(tmp_path / "released", weights)
    return tmp_path / "results"


@pytest.mark.slow
@pytest.mark.parametrize(("row", "step"), [("base_python", 0), ("sao", 2)])
def test_vllm_serves_the_policy_for_its_evaluation(
    row: str, step: int, results: Path, temporary_files: Path
) -> None:
    words = ["--row", row, "--scale", "tiny_math", "--benchmark", "aime_2025", "--data", "synthetic"]
    assert main([*words, "--results", str(results), "--concurrency", "4"]) == 0
    folder = results / "tiny_math" / "evaluations" / row / "seed0" / f"step{step}" / "aime_2025"
    evaluation = read_evaluation(folder)
    assert evaluation.sealed and evaluation.spec["protocol"]["max_tokens"] == MOST_TOKENS
    samples = list(read_samples(folder))
    assert len(samples) == KNOWN * RUNS and sum(sample["verdict"] == "right" for sample in samples) >= 2
    assert all(sample["tool_calls"] == 1 for sample in samples if sample["verdict"] == "right")
    assert "vLLM" in (folder / "server.log").read_text(errors="replace")
    assert not list(temporary_files.iterdir())
