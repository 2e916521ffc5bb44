"""The table between settings and OpenRLHF's flags. tests/openrlhf/test_flags.py feeds them to its parser."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from sao import prepare
from sao.config import ConfigError, Scale, digest_of, load_scale, resolve, value_pretraining_run
from sao.estimators import critic_learning_rate
from sao.openrlhf import fine_tuning, flags, launch, sft_flags, values
from sao.runlog import RunError

GOLDEN = Path(__file__).parent / "golden"
PAPER_SCALES = ("paper_math", "paper_swe", "paper_writing")


def options(row: str, scale: str) -> dict[str, list[str]]:
    """Words by flag of a planned command line."""
    run = resolve(row, scale, 0)
    found: dict[str, list[str]] = {}
    for word in flags.command_line(run, flags.planned_places(run)):
        if word.startswith("--"):
            assert word not in found, f"{word} is stated twice"
            found[word] = last = []
        else:
            last.append(word)
    return found


def test_sao_at_the_papers_scale() -> None:
    found = options("sao", "paper_math")
    expected = {
        "--train.batch_size": ["128"],
        "--rollout.batch_size": ["128"],
        "--rollout.n_samples_per_prompt": ["1"],
        "--rollout.vllm_generate_batch_size": ["256"],
        "--actor.adam.lr": ["1e-06"],
        "--critic.adam.lr": ["5e-06"],
        "--critic.freezing_steps": ["9"],  # trains the policy from step 10 on: 10 critic-only steps
        "--algo.advantage.is_correction_threshold": ["0.7", "6"],
        "--data.max_len": ["131072"],
        "--ds.ring_attn_size": ["8"],
        "--algo.kl.init_coef": ["0"],
        "--train.async_enable": [],
        "--train.partial_rollout_enable": [],
    }
    assert {name: found[name] for name in expected} == expected
    assert found["--actor.model_name_or_path"] == ["results/paper_math/prepare/math/warm_start/policy"]


def test_coding_starts_from_the_released_model_with_its_own_band() -> None:
    found = options("sao_swe", "paper_swe")
    assert found["--algo.advantage.is_correction_threshold"] == ["0.2", "4"]
    assert found["--actor.model_name_or_path"] == ["Qwen/Qwen3-30B-A3B-Thinking-2507"]
    assert found["--critic.model_name_or_path"] == found["--actor.model_name_or_path"]


def test_groups_have_fewer_prompts_and_no_critic() -> None:
    found = options("grpo_dis", "paper_math")
    assert found["--rollout.batch_size"] == ["16"] and found["--train.batch_size"] == ["128"]
    assert found["--algo.advantage.estimator"] == ["group_norm"]
    assert not any(name.startswith("--critic.") for name in found)
    assert options("running_mean", "paper_math")["--algo.advantage.estimator"] == ["reinforce"]


def test_clipped_objectives_state_their_range_and_correct_nothing_twice() -> None:
    found = options("vapo", "paper_math")
    assert found["--actor.eps_clip_low_high"] == ["0.2", "0.28"]
    assert found["--algo.advantage.is_correction_threshold"] == ["0", "inf"]
    assert options("gspo", "paper_math")["--actor.policy_loss_type"] == ["gspo"]
    assert "--actor.eps_clip_low_high" not in options("sao", "paper_math")


def test_synchronous_rows_do_not_overlap_sampling_and_training() -> None:
    found = options("sao_sync", "paper_math")
    for name in ("--train.async_enable", "--train.partial_rollout_enable"):
        assert name not in found
    assert "--rollout.vllm_generate_batch_size" not in found


def test_every_row_of_every_openrlhf_scale_has_a_command_line() -> None:
    for scale in (
        *PAPER_SCALES,
        "openrlhf_smoke",
        "openrlhf_smoke_two_ranks",
        "openrlhf_smoke_math",
        "gpu_openrlhf",
    ):
        for row in load_scale(scale).rows():
            assert options(row, scale)["--train.seed"] == ["0"]


def test_smoke_uses_no_cuda() -> None:
    found = options("sao", "openrlhf_smoke_two_ranks")
    assert found["--vllm.sync_backend"] == ["gloo"] and found["--ds.attn_implementation"] == ["sdpa"]
    assert found["--actor.num_gpus_per_node"] == ["2"] and found["--ds.zero_stage"] == ["3"]
    assert "--vllm.enforce_eager" in found


def test_logging_is_off_unless_asked_for() -> None:
    run = resolve("sao", "paper_math", 0)
    places = flags.planned_places(run)
    assert not any(
        word.startswith("--logger.t") or ".wandb" in word for word in flags.command_line(run, places)
    )
    from sao.config_cluster import Logging

    asked = run.model_copy(update={"logging": Logging(tensorboard=True, wandb="project")})
    words = flags.command_line(asked, places)
    assert words[words.index("--logger.tensorboard_dir") + 1] == f"{places.run}/tensorboard"
    assert words[words.index("--logger.wandb.project") + 1] == "project"
    assert "--logger.wandb.key" not in words, "a key on a command line is visible to everyone on the machine"


def test_a_setting_that_the_table_does_not_name_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    run = resolve("sao", "paper_math", 0)
    shorter = {key: entry for key, entry in flags.TABLE.items() if key != "critic.frozen"}
    monkeypatch.setattr(flags, "TABLE", shorter)
    with pytest.raises(
        ConfigError, match=r"critic\.frozen: sao/openrlhf/flags\.py does not say what becomes of it"
    ):
        flags.check(run)


def test_a_value_that_the_backend_cannot_have_raises() -> None:
    run = resolve("sao", "paper_math", 0)
    sampler = run.sampler.model_copy(update={"rounding": "fp8"})
    with pytest.raises(ConfigError, match=r"sampler\.rounding: is fp8, and OpenRLHF can have none alone"):
        flags.check(run.model_copy(update={"sampler": sampler}))


def test_ranks_that_cannot_share_a_batch_are_refused() -> None:
    run = resolve("sao", "openrlhf_smoke", 0)
    engine = run.openrlhf.model_copy(update={"micro_batch_trajectories": 16})
    group = run.cluster.actor.model_copy(update={"processes_per_node": 2})
    cluster = run.cluster.model_copy(update={"actor": group})
    flags.check(run.model_copy(update={"openrlhf": engine}))
    with pytest.raises(ConfigError, match=r"cluster\.actor: 2 ranks of 1 processes cannot share 16"):
        flags.check(run.model_copy(update={"openrlhf": engine, "cluster": cluster}))
    three = run.cluster.model_copy(
        update={"critic": run.cluster.critic.model_copy(update={"processes_per_node": 3})}
    )
    with pytest.raises(ConfigError, match=r"cluster\.critic: 3 ranks"):
        flags.check(run.model_copy(update={"cluster": three}))


@pytest.mark.parametrize("scale", PAPER_SCALES)
def test_command_lines_are_those_of_the_golden_files(scale: str, tmp_path: Path) -> None:
    """Regenerate: python -m sao.openrlhf.flags --scale SCALE --write tests/golden"""
    written = flags.write_commands(scale, tmp_path)
    golden = sorted(GOLDEN.glob(f"{scale}.*.txt"))
    assert [file.name for file in golden] == sorted(file.name for file in written)
    for file in golden:
        assert (tmp_path / file.name).read_text() == file.read_text(), file.name


def test_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert flags.main(["--scale", "paper_math", "--row", "sao"]) == 0
    words = shlex.split(capsys.readouterr().out.replace("\\\n", " "))
    run = resolve("sao", "paper_math", 0)
    assert words == ["python", "-m", flags.CLI, *flags.command_line(run, flags.planned_places(run))]
    assert flags.main(["--scale", "cpu", "--row", "sao"]) == 2
    assert capsys.readouterr().err == "experiments/scales/cpu.yaml: backend: is local, not openrlhf\n"
    assert flags.main(["--scale", "paper_math", "--row", "soa"]) == 2
    assert "did you mean sao?" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert flags.main(["--scale", "paper_swe", "--write", str(tmp_path / "file")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_fine_tuning_is_three_epochs_from_the_released_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Regenerate: python -m sao.openrlhf.sft_flags --scale paper_math --write tests/golden"""
    assert sft_flags.main(["--scale", "paper_math"]) == 0
    printed = capsys.readouterr().out
    assert printed == (GOLDEN / "paper_math_sft.txt").read_text()
    words = shlex.split(printed.replace("\\\n", " "))
    assert words[words.index("--train.max_epochs") + 1] == "3"
    assert words[words.index("--model.model_name_or_path") + 1] == "Qwen/Qwen3-30B-A3B-Thinking-2507"
    assert words[words.index("--ckpt.output_dir") + 1] == "results/paper_math/prepare/math/warm_start/policy"
    assert sft_flags.main(["--scale", "paper_math", "--write", str(tmp_path)]) == 0
    assert (tmp_path / "paper_math_sft.txt").read_text() == printed
    assert sft_flags.main(["--scale", "paper_swe"]) == 2
    assert "paper_swe.yaml: sft: the scale fine-tunes no released model" in capsys.readouterr().err


def test_fine_tuning_without_traces_says_how_to_make_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["warm-start", "--scale", "paper_math", "--task", "math", "--results", str(tmp_path)]
    assert prepare.main(words) == 2
    message = capsys.readouterr().err
    assert message.startswith(
        f"{tmp_path}/data/sft_prompts_traces.jsonl: is missing; have openai/gpt-oss-120b"
    )
    assert "python -m evaluation.math.sft_traces" in message
    assert prepare.main(["warm-start", "--scale", "paper_swe", "--task", "swe"]) == 2
    assert "paper_swe.yaml: sft: the scale fine-tunes no released model" in capsys.readouterr().err


def test_fine_tuning_starts_once_for_each_gpu_of_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    smoke = fine_tuning.launcher(load_scale("openrlhf_smoke_two_ranks"), {})
    assert smoke == [*torchrun, "--standalone", "--nproc-per-node", "2"]
    with pytest.raises(
        RunError, match=r"cluster\.actor\.nodes: fine-tuning on 4 nodes starts inside a SLURM"
    ):
        fine_tuning.launcher(load_scale("paper_math"), {})
    monkeypatch.setattr(fine_tuning, "job_hosts", lambda environment: ["n1", "n2", "n3", "n4"])
    words = fine_tuning.launcher(load_scale("paper_math"), {"SLURM_JOB_ID": "1"})
    assert words[0] == "srun" and words[words.index("--nodes") + 1] == "4"
    started = words[words.index(sys.executable) :]
    assert started[:3] == torchrun and started[started.index("--nnodes") + 1] == "4"
    assert started[started.index("--nproc-per-node") + 1] == "8"
    assert started[started.index("--rdzv-endpoint") + 1] == "n1:29400"


def test_value_pretraining_is_a_run_of_critic_only_steps(capsys: pytest.CaptureFixture[str]) -> None:
    """Regenerate: python -m sao.openrlhf.values --scale paper_math --task math"""
    assert values.main(["--scale", "paper_math", "--task", "math"]) == 0
    printed = capsys.readouterr().out
    assert printed == (GOLDEN / "paper_math_values.txt").read_text()
    words = shlex.split(printed.replace("\\\n", " "))
    started_from = words[words.index("--critic.model_name_or_path") + 1]
    assert started_from == "results/paper_math/prepare/math/warm_start/policy"
    assert values.main(["--scale", "paper_swe", "--task", "swe"]) == 0
    assert "--critic.model_name_or_path Qwen/Qwen3-30B-A3B-Thinking-2507" in capsys.readouterr().out
    assert values.main(["--scale", "paper_swe", "--task", "maths"]) == 2
    assert "paper_swe.yaml: tasks: no task maths" in capsys.readouterr().err


def test_value_pretraining_has_the_scales_steps_and_rate_decaying_to_the_last() -> None:
    run = value_pretraining_run(load_scale("paper_swe"), "swe", "attention", 0)
    assert (run.metrics_lines, run.critic_only_steps, run.training.batch_trajectories) == (50, 50, 128)
    assert run.task.name == "swe" and run.preparation_steps == ()
    rates = [critic_learning_rate(run, step) for step in (-50, -25, -1)]
    assert rates == pytest.approx([5e-6, 2.5e-6, 1e-7])
    assert run.critic.updates_per_batch == 1 and not run.critic.pretrained
    fine_tuned = value_pretraining_run(load_scale("paper_math"), "math", "none", 0)
    assert fine_tuned.preparation_steps == ("warm_start",) and fine_tuned.critic.frozen == "none"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"epochs": 2}, r"value_pretraining\.epochs: 2, but a released model trains"),
        ({"rollouts": 100}, r"value_pretraining\.rollouts: 100 is no multiple of batch_trajectories 128"),
    ],
)
def test_value_pretraining_that_does_not_divide_is_refused(setting: dict[str, int], message: str) -> None:
    given = load_scale("paper_swe").model_dump()
    given["value_pretraining"] |= setting
    with pytest.raises(ValueError, match=message):
        Scale.model_validate(given)


def test_values_without_the_fine_tuned_policy_say_what_is_missing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "check_versions", lambda: None)
    words = ["values", "--scale", "paper_math", "--task", "math", "--results", str(tmp_path)]
    assert prepare.main(words) == 2
    assert "warm_start: is missing or unfinished; make it with" in capsys.readouterr().err
    place = tmp_path / "paper_math/prepare/math/values_attention_run"
    spec = json.loads((place / "spec.json").read_text())
    settings = spec["config"] | {"checkpoint_interval": 7}
    (place / "spec.json").write_text(json.dumps(spec | {"config": settings, "digest": digest_of(settings)}))
    assert prepare.main(words) == 2
    assert "values_attention_run: was begun with other settings; move it away" in capsys.readouterr().err
