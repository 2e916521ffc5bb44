"""Memory, time and disk of runs over OpenRLHF, worked out by hand, and the plan that prints them."""

import json
from pathlib import Path

import pytest

from evaluation import planning
from sao import cluster_costs, grid, memory
from sao.config import RunConfig, resolve
from sao.config_scales import Model
from sao.grid import open_grid

QWEN = 30_532_122_624  # parameters of Qwen3-30B-A3B, as its published checkpoint has them


@pytest.fixture
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def small(**changes: int) -> Model:
    settings = {
        "hidden_size": 4,
        "layers": 2,
        "attention_heads": 2,
        "key_value_heads": 1,
        "experts": 3,
        "experts_per_token": 1,
        "expert_intermediate_size": 5,
        "initializer_range": 0.02,
    }
    return Model(**(settings | changes))


def changed(run: RunConfig, block: str, **values: object) -> RunConfig:
    return run.model_copy(update={block: getattr(run, block).model_copy(update=values)})


def test_parameters_of_a_small_model() -> None:
    """Heads of width 2: attention 32 + 16 + 4 a layer, experts 3 x 60, norms and router 20, final norm 4."""
    found = memory.count_parameters(small(), vocabulary_size=10)
    assert (found.attention, found.experts, found.other) == (104, 360, 44)
    assert (found.embedding, found.head, found.total) == (40, 40, 588)
    assert found.active == 104 + 2 * 60 + 44 + 80


def test_parameters_are_those_of_the_network_that_is_built() -> None:
    from sao.local.model import build_policy

    for model in (small(hidden_size=8), resolve("sao", "openrlhf_smoke", 0).model):
        policy = build_policy(model, vocabulary_size=70, max_tokens=32, seed=0)
        counted = memory.count_parameters(model, vocabulary_size=70)
        assert counted.total == sum(parameter.numel() for parameter in policy.parameters())
        attention = sum(p.numel() for name, p in policy.named_parameters() if "self_attn" in name)
        assert counted.attention == attention


def test_the_released_model_has_its_published_size() -> None:
    counted = memory.count_parameters(resolve("sao", "paper_math", 0).model, 151_936)
    assert counted.total == QWEN
    assert round(counted.active / 1e9, 1) == 3.4


def test_memory_of_the_policys_trainer_at_the_papers_scale() -> None:
    """ZeRO-3 over 32 GPUs; ring attention of 8 leaves 16,384 of 131,072 tokens to each."""
    run = resolve("sao", "paper_math", 0)
    found = memory.policy_trainer(run, 151_936)
    assert memory.tokens_per_forward(run) == 16_384
    assert found.weights == found.gradients == 2 * QWEN / 32
    assert found.optimizer == 12 * QWEN / 32
    layer = (QWEN - 2 * 151_936 * 2048 - 2048) / 48
    assert found.gathered == pytest.approx(2 * 2 * layer, rel=1e-6)
    # inputs of 48 layers, and twice one layer's residuals, attention, router and 8 experts
    work = 4 * 2048 + 2 * 4096 + 2 * 512 + 2 * 128 + 8 * (2 * 2048 + 3 * 768)
    assert found.activations == 2 * 16_384 * (48 * 2048 + 2 * work)
    assert found.logits_chunk == 2**28
    assert found.logits_avoided == 16_384 * 151_936 * 4
    assert found.total == pytest.approx(25.8e9, rel=2e-3)


def test_what_full_logits_and_the_router_loss_would_take_of_a_whole_trajectory() -> None:
    """74 GiB of logits and 48 GiB of one-hot counts for 131,072 tokens on one GPU."""
    run = resolve("sao", "paper_math", 0)
    run = changed(run, "openrlhf", ring_attention=1, max_tokens_per_gpu=131_072)
    found = memory.policy_trainer(run, 151_936)
    assert found.logits_avoided / 2**30 == pytest.approx(74.2, abs=0.05)
    assert found.router_loss_avoided / 2**30 == 48


def test_without_checkpointing_every_layer_is_held() -> None:
    run = resolve("sao", "openrlhf_smoke", 0)
    found = memory.policy_trainer(run, 70)
    work = 4 * 64 + 2 * 4 * 32 + 2 * 2 * 32 + 2 * 8 + 2 * (2 * 64 + 3 * 32)
    assert memory.tokens_per_forward(run) == 4 * 420
    assert found.activations == 4 * 1680 * 3 * work, (
        "float32, 4 trajectories of 420 tokens, 2 layers and one in work"
    )


def test_zero_2_keeps_whole_weights_and_offload_moves_the_optimizer() -> None:
    run = resolve("sao", "paper_math", 0)
    found = memory.policy_trainer(changed(run, "openrlhf", zero_stage=2, offload_optimizer=True), 151_936)
    assert (found.weights, found.gathered, found.optimizer) == (2 * QWEN, 0, 0)


def test_the_critic_has_no_output_head_and_no_gradients_of_frozen_attention() -> None:
    head = 151_936 * 2048
    attention = 48 * (2 * 2048 * 4096 + 2 * 2048 * 512 + 2 * 128)
    frozen = memory.critic_trainer(resolve("sao", "paper_math", 0), 151_936)
    full = memory.critic_trainer(resolve("sao_full_critic", "paper_math", 0), 151_936)
    assert frozen.weights == full.weights == 2 * (QWEN - head) / 32
    assert full.optimizer == 12 * (QWEN - head) / 32
    assert frozen.optimizer == 12 * (QWEN - head - attention) / 32
    assert frozen.logits_avoided == 0


def test_an_engine_caches_what_its_share_leaves() -> None:
    """96 KiB a token: two of 4 key-value heads of width 128, in 48 layers, of 2 bytes."""
    run = resolve("sao", "paper_math", 0)
    found = memory.engine(run, 151_936)
    assert found.cache_per_token == 2 * 2 * 48 * 4 * 128 == 98_304
    assert found.weights == 2 * QWEN / 4
    assert found.cache == pytest.approx(0.85 * 80e9 - QWEN / 2)
    assert found.full_trajectories == pytest.approx(32 * found.cache / (98_304 * 131_072))
    cramped = changed(run, "cluster", engines=run.cluster.engines.model_copy(update={"tensor_parallel": 1}))
    assert memory.engine(changed(cramped, "job", gpu_memory_gb=40), 151_936).cache < 0


def test_minutes_scale_with_gpus_and_length_from_the_reference() -> None:
    """10 minutes on 32 GPUs at 32,768 tokens: 10 to 40 at four times the length, half on twice the GPUs."""
    run = resolve("sao", "paper_math", 0)
    found = cluster_costs.minutes_per_update(run)
    assert (found.low, found.high) == (10, 40)
    doubled = changed(run, "cluster", actor=run.cluster.actor.model_copy(update={"nodes": 8}))
    assert cluster_costs.minutes_per_update(doubled).low == 5
    short = cluster_costs.minutes_per_update(resolve("sao_online", "paper_writing", 0))
    assert (short.low, short.high) == (2.5, 10)
    assert cluster_costs.minutes_per_update(resolve("sao", "gpu_openrlhf", 0)) is None, (
        "another size of model"
    )


def test_hours_jobs_and_gpu_hours_of_a_run() -> None:
    """1,010 batches of a row with critic-only steps, 1,000 of one without; jobs of at most 72 hours."""
    run, group = resolve("sao", "paper_math", 0), resolve("grpo_dis", "paper_math", 0)
    hours = cluster_costs.training_hours(run)
    assert (hours.low, hours.high) == (pytest.approx(1010 / 6), pytest.approx(1010 * 4 / 6))
    assert cluster_costs.gpu_hours(run, hours).low == pytest.approx(96 * 1010 / 6)
    assert cluster_costs.gpu_hours(group, cluster_costs.training_hours(group)).low == pytest.approx(
        64 * 1000 / 6
    )
    jobs = cluster_costs.jobs_of(run)
    assert (jobs.low, jobs.high) == (3, 10)
    assert cluster_costs.attempts_needed(run) == 10
    assert cluster_costs.attempts_needed(resolve("sao", "cpu", 0)) == 1
    values = cluster_costs.value_pretraining_hours(run)
    assert values.low == pytest.approx(50 * 10 / 60)


def test_measured_minutes_replace_the_estimate() -> None:
    run = changed(resolve("sao", "gpu_openrlhf", 0), "job", minutes_per_update=0.5)
    assert cluster_costs.training_hours(run).low == pytest.approx(310 * 0.5 / 60)


def test_disk_of_a_run() -> None:
    """14 bytes a parameter of the policy; the critic's frozen attention has no optimizer state."""
    head, attention = 151_936 * 2048, 905_981_952
    group = cluster_costs.disk_of(resolve("grpo_dis", "paper_math", 0), 151_936)
    assert (group.checkpoint, group.weights, group.exports) == (14 * QWEN, 2 * QWEN, 10)
    assert group.total == 3 * 14 * QWEN + 10 * 2 * QWEN
    sao = cluster_costs.disk_of(resolve("sao", "paper_math", 0), 151_936)
    assert sao.checkpoint == 14 * QWEN + 2 * (QWEN - head) + 12 * (QWEN - head - attention)


@pytest.mark.usefixtures("in_empty_folder")
def test_plan_of_the_papers_scale(capsys: pytest.CaptureFixture[str]) -> None:
    assert grid.main(["plan", "--scale", "paper_math"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (sao,) = [line.split() for line in lines if line.startswith("sao ")]
    assert sao[1:6] == ["1", "0", "0", "12", "96"] and sao[-3:] == ["16,160", "to", "64,640"]
    (total,) = [line for line in lines if line.startswith("the paper's rows (snakemake)")]
    assert total.startswith("the paper's rows (snakemake): 10 runs left, 145,120 to 580,480 GPU-hours")
    assert any(line.startswith("preparation left: math/warm_start: fine-tuning") for line in lines)
    traces = "preparation left: traces: 4 attempts of openai/gpt-oss-120b at every problem of sft_prompts; "
    assert any(line.startswith(traces) for line in lines)
    assert any(line.startswith("  policy: weights 1.9, gradients 1.9, optimizer 11.4") for line in lines)


@pytest.mark.usefixtures("in_empty_folder")
def test_plan_says_where_memory_is_short_and_what_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    from sao.cluster_plan import memory_lines

    run = resolve("sao", "paper_math", 0)
    text = "\n".join(memory_lines(changed(run, "job", gpu_memory_gb=24)))
    assert "policy: 25.8 GB are more than a GPU has" in text
    shared = changed(run, "cluster", one_node=True)
    assert "all processes on one GPU: 118.7 GB are more than a GPU has" in "\n".join(memory_lines(shared))
    folder = Path("results/paper_swe/runs/sao_swe/seed0")
    folder.mkdir(parents=True)
    settings = resolve("sao_swe", "paper_swe", 0)
    spec = {"row": "sao_swe", "scale": "paper_swe", "seed": 0, "config": settings.settings()}
    (folder / "spec.json").write_text(json.dumps(spec | {"digest": settings.digest()}))
    (folder / "seal.json").write_text(json.dumps({"digest": settings.digest()}))
    text = planning.plan_text(open_grid({"scale": "paper_swe"}))
    assert "the paper's rows (snakemake): 1 runs left, 2,133 to 8,533 GPU-hours" in text


@pytest.mark.usefixtures("in_empty_folder")
def test_small_models_get_no_invented_hours(capsys: pytest.CaptureFixture[str]) -> None:
    assert planning.main(["--scale", "openrlhf_smoke"]) == 0
    printed = capsys.readouterr().out
    assert "GPU-hours not estimated (state job.minutes_per_update once it is measured)" in printed
    assert "memory per GPU: this scale uses none" in printed
    assert grid.main(["plan", "--scale", "gpu"]) == 0
    assert "nothing of this scale is logged to estimate them from" in capsys.readouterr().out
