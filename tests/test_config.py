"""Rows, scales and how faults in them are reported."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sao import config, config_files, documentation
from sao.config import ConfigError, RunConfig, load_row, load_scale, resolve, row_names
from sao.config_rows import RowSettings

PAPER_ROWS = {
    *("sao", "sao_dis_only", "grpo_dis", "grpo_vanilla", "sao_critic_1x", "sao_full_critic", "vapo"),
    *("running_mean", "step_average", "step_last_token", "sao_online", "running_mean_online"),
    *("sao_swe", "grpo_dis_swe"),
}
SWE_ROWS = {"sao_swe", "grpo_dis_swe"}
BEYOND_ROWS = {
    *(
        "sao_no_dis",
        "sao_no_skip",
        "sao_no_pretrain",
        "sao_advantage_first",
        "sao_alpha_0_05",
        "dapo",
        "gspo",
    ),
    *("icepop", "tis", "grpo_sync", "sao_sync"),
}


@pytest.fixture
def experiments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the experiments folder that tests may change."""
    copy = tmp_path / "experiments"
    shutil.copytree(config_files.EXPERIMENTS, copy)
    monkeypatch.setattr(config_files, "EXPERIMENTS", copy)
    return copy


def fault(call, *arguments) -> str:
    with pytest.raises(ConfigError) as caught:
        call(*arguments)
    return str(caught.value)


def row_fault(experiments: Path, text: str) -> str:
    """The message for a row file x.yaml with a title and `text`."""
    (experiments / "rows" / "x.yaml").write_text(f"title: x\n{text}\n")
    return fault(resolve, "x", "cpu", 0)


def scale_fault(experiments: Path, text: str) -> str:
    """The message for a scale file x.yaml that extends cpu."""
    (experiments / "scales" / "x.yaml").write_text(f"extends: cpu\n{text}\n")
    return fault(resolve, "sao", "x", 0)


def test_all_rows_exist_in_their_groups() -> None:
    assert {name for name in row_names() if load_row(name).group == "paper"} == PAPER_ROWS
    assert {name for name in row_names() if load_row(name).group == "beyond"} == BEYOND_ROWS
    assert len({load_row(name).title for name in row_names()}) == 25


def changed(row: str) -> dict[str, object]:
    """The row's settings in which it differs from sao, title aside, by dotted key."""
    base = {key: value for key, value, _ in config.sources("sao", "cpu")}
    settings = config.sources(row, "paper_swe" if row in SWE_ROWS else "cpu")
    return {
        key: value
        for key, value, _ in settings
        if key.split(".")[0] in RowSettings.model_fields and key != "title" and base.get(key, "-") != value
    }


PPO = {
    "objective.kind": "ppo_clip",
    "objective.clip_low": 0.2,
    "objective.clip_high": 0.28,
    "objective.reference": "trainer",
}
CODING = {"domain": "coding", "objective.eps_low": 0.8, "objective.eps_high": 3.0}
GROUP = {"sampling.group_size": 8, "advantage.kind": "group_normalized", "critic": None}
STEP = {"advantage.kind": "step_level_gae"}
CLIP = {"objective.clip_low": 0.2, "objective.clip_high": 0.28}


@pytest.mark.parametrize(
    ("row", "differences"),
    [
        ("sao_dis_only", {"critic.updates_per_batch": 1, "critic.frozen": "none"}),
        ("grpo_dis", GROUP),
        ("grpo_vanilla", PPO | GROUP),
        ("sao_critic_1x", {"critic.updates_per_batch": 1}),
        ("sao_full_critic", {"critic.frozen": "none"}),
        (
            "vapo",
            PPO
            | {"objective.positive_example_coefficient": 0.1, "advantage.alpha": 0.05}
            | {"critic.updates_per_batch": 1, "critic.frozen": "none"},
        ),
        (
            "running_mean",
            {
                "advantage.kind": "running_mean",
                "advantage.window": 8,
                "advantage.per_prompt": True,
                "critic": None,
            },
        ),
        ("step_average", STEP | {"advantage.step_value": "mean"}),
        ("step_last_token", STEP | {"advantage.step_value": "last"}),
        ("sao_online", {"domain": "writing"}),
        ("sao_swe", CODING),
        ("grpo_dis_swe", CODING | GROUP),
        (
            "running_mean_online",
            {"domain": "writing", "advantage.kind": "running_mean", "advantage.window": 128}
            | {"advantage.per_prompt": False, "critic": None},
        ),
        ("sao_no_dis", PPO),
        ("sao_no_skip", {"advantage.kind": "full_sequence_gae"}),
        ("sao_no_pretrain", {"critic.pretrained": False}),
        ("sao_advantage_first", {"critic.advantages_after_updates": False}),
        ("sao_alpha_0_05", {"advantage.alpha": 0.05}),
        ("dapo", PPO | GROUP | {"sampling.dynamic_sampling": True, "sampling.overlong_shaping": True}),
        (
            "gspo",
            GROUP | {"objective.kind": "gspo", "objective.clip_low": 3e-4, "objective.clip_high": 4e-4},
        ),
        (
            "icepop",
            CLIP | {"objective.kind": "icepop", "objective.band_low": 0.5, "objective.band_high": 5.0},
        ),
        ("tis", CLIP | {"objective.kind": "tis", "objective.cap": 2.0}),
        ("grpo_sync", PPO | GROUP | {"sampling.schedule": "synchronous"}),
        ("sao_sync", {"sampling.schedule": "synchronous"}),
    ],
)
def test_row_differs_from_sao_in_these_settings_alone(row: str, differences: dict[str, object]) -> None:
    assert changed(row) == differences


def test_sao_has_the_papers_settings() -> None:
    run = resolve("sao", "cpu", 0)
    assert (run.objective.kind, run.objective.eps_low, run.objective.eps_high) == ("dis", 0.3, 5.0)
    assert (run.advantage.kind, run.advantage.alpha, run.advantage.gamma) == (
        "skip_observation_gae",
        1.5,
        1.0,
    )
    assert run.critic is not None
    assert (run.critic.updates_per_batch, run.critic.frozen, run.critic.critic_only_steps) == (
        2,
        "attention",
        10,
    )
    assert run.critic.learning_rate_factor == 5.0
    assert (run.sampling.group_size, run.minibatches_per_batch) == (1, 1)


def test_row_files_state_only_what_differs_from_sao() -> None:
    """A repeated value would hide what makes the row; blocks of another kind stand whole and may repeat."""
    base = config_files.read_yaml(config_files.file_of("rows", "sao"))

    def repeated(block: dict, below: dict) -> list[str]:
        found = []
        for name, value in block.items():
            if isinstance(value, dict) and isinstance(below.get(name), dict):
                if value.get("kind", below[name].get("kind")) == below[name].get("kind"):
                    found += repeated(value, below[name])
            elif name in below and below[name] == value:
                found.append(name)
        return found

    for row in row_names():
        if row != "sao":
            assert repeated(config_files.read_yaml(config_files.file_of("rows", row)), base) == [], row


def test_every_row_resolves_at_every_scale_of_its_domain() -> None:
    local = {"cpu", "cpu_long", "cpu_math", "cpu_plain", "smoke", "smoke_math", "gpu", "gpu_math", "swe_tiny"}
    smoke = {
        "openrlhf_smoke",
        "openrlhf_smoke_math",
        "openrlhf_smoke_swe",
        "openrlhf_smoke_two_ranks",
        "openrlhf_one_update",
    }
    paper = {"paper_math", "paper_swe", "paper_writing"}
    assert set(config.scale_names()) == local | smoke | paper | {"gpu_openrlhf"}
    for name in config.scale_names():
        scale = load_scale(name)
        for row in scale.rows():
            run = resolve(row, name, 0)
            assert run.metrics_lines == run.training.updates + (10 if run.critic else 0)
    everything, online = PAPER_ROWS | BEYOND_ROWS, {"sao_online", "running_mean_online"}
    assert set(load_scale("cpu").rows()) == everything - SWE_ROWS
    assert set(load_scale("cpu_plain").rows()) == everything - SWE_ROWS - online
    assert set(load_scale("paper_math").rows()) == everything - SWE_ROWS - online
    assert set(load_scale("paper_swe").rows()) == SWE_ROWS
    assert set(load_scale("paper_writing").rows()) == online


def test_scales_inherit_and_replace() -> None:
    plain, cpu = resolve("sao", "cpu_plain", 0), resolve("sao", "cpu", 0)
    assert plain.task.name == "locks_plain"
    assert plain.task.budget_slack_odds == {0: 1.0}  # replaced, not merged with the slacks of cpu
    assert plain.clock.latency_scale_ticks == 0 < cpu.clock.latency_scale_ticks
    assert plain.model == cpu.model
    smoke = resolve("grpo_dis", "smoke", 0)
    assert (smoke.training.updates, smoke.evaluation.steps, smoke.prompts_per_batch) == (3, (1, 3), 2)
    assert smoke.task.lock_count_odds[1] == 1.0 and smoke.task.max_turns == cpu.task.max_turns
    long = resolve("sao", "cpu_long", 0)
    assert (long.training.updates, long.evaluation.steps[-1]) == (500, 500)
    assert load_scale("cpu_long").seeds == (0,)


def test_digest_covers_every_setting_but_the_title() -> None:
    run = resolve("vapo", "cpu", 1)
    assert run.digest() == resolve("vapo", "cpu", 1).digest()
    assert run.digest() == run.model_copy(update={"title": "other"}).digest()
    other = [resolve("vapo", "cpu", 2), resolve("vapo", "smoke", 1), resolve("sao", "cpu", 1)]
    other.append(run.model_copy(update={"checkpoint_interval": 7}))
    assert run.digest() not in {changed.digest() for changed in other}
    assert config.digest_of(json.loads(json.dumps(run.settings()))) == run.digest()


def test_run_survives_json() -> None:
    run = resolve("dapo", "cpu", 3)
    assert RunConfig.model_validate_json(run.model_dump_json()) == run


def test_preparation_digest_ignores_rows_and_clock(experiments: Path) -> None:
    before = config.preparation_digest("cpu", "locks")
    assert before != config.preparation_digest("cpu", "style")
    other = experiments / "scales" / "x.yaml"
    other.write_text("extends: cpu\nclock: {update_ticks: 77}\ncheckpoint_interval: 77\n")
    assert config.preparation_digest("x", "locks") == before
    other.write_text("extends: cpu\nvalue_pretraining: {rollouts: 77}\n")
    assert config.preparation_digest("x", "locks") != before
    assert "tasks: no task lock; did you mean locks?" in fault(config.preparation_digest, "cpu", "lock")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "objective: {kind: ppo_clip, clip_hihg: 0.3}",
            "objective.clip_hihg: unknown key; did you mean clip_high?",
        ),
        ("critics: {}", "critics: unknown key; did you mean critic?"),
        ("critic: {frozen: atention}", "critic.frozen: must be 'attention', 'none' or"),
        ("objective: {kind: diss}", "objective.kind: unknown kind diss; did you mean dis?"),
        ("objective: {cap: 2.0}", "objective.cap: unknown key of kind dis: it belongs to tis"),
        ("objective: {band_low: 0.5}", "it belongs to icepop"),
        ("objective: {clip_low: 0.2}", "it belongs to ppo_clip or gspo or icepop or tis"),
        ("objective: {kind: tis, clip_low: 0.2, clip_high: 0.28}", "objective.cap: is missing"),
        ("objective: {eps_low: a}", 'objective.eps_low: should be a valid number, and is "a"'),
        ("objective: {eps_low: .nan}", "objective.eps_low: should be a finite number"),
        ("objective: {eps_low: 1.0}", "objective.eps_low: should be less than 1"),
        ("critic: {updates_per_batch: 1.5}", "critic.updates_per_batch: should be a valid integer"),
        ("critic: {pretrained: 1}", "critic.pretrained: should be a valid boolean"),
        ("sampling: 3", "sampling: should be a mapping, and is 3"),
        ("sampling: {top_p: 0.9}", "sampling.top_p: 0.9 would make rollout log-probs differ"),
        ("sampling: {top_k: 50}", "sampling.top_k: 50 would make"),
        ("sampling: {temperature: 0.7}", "sampling.temperature: 0.7 would make"),
        (
            "sampling: {group_size: 8}",
            "sampling.group_size: 8 samples groups that skip_observation_gae does not use",
        ),
        (
            "advantage: {kind: group_normalized}\ncritic: null",
            "sampling.group_size: 1 leaves group_normalized advantages no group",
        ),
        ("critic: null", "critic: null, but advantage.kind skip_observation_gae reads its values"),
        (
            "advantage: {kind: running_mean, window: 8, per_prompt: true}",
            "critic: running_mean advantages use no",
        ),
        (
            "advantage: {kind: group_normalized}\nsampling: {group_size: 8}",
            "critic: group_normalized advantages use no critic; set critic: null",
        ),
        (
            "sampling: {dynamic_sampling: true}",
            "sampling.dynamic_sampling: replaces groups, and this row has none",
        ),
        ("optimizer: {betas: [0.9, 1.0]}", "optimizer.betas: [0.9, 1.0] is outside [0, 1)"),
        ("title: y", "line 2: key title is stated twice; keep one"),
        ("critic: {frozen: none, frozen: attention}", "key frozen is stated twice"),
        ("critic: [", "line 3:"),
        ("name: y", "name: is the file's name and no key"),
        ("domain: code", "domain: must be 'reasoning', 'coding' or 'writing', and is \"code\""),
    ],
)
def test_faults_of_a_row_name_file_key_and_mend(experiments: Path, text: str, message: str) -> None:
    lines = row_fault(experiments, text).splitlines()
    assert [line for line in lines if line.startswith("experiments/rows/x.yaml: ") and message in line], lines


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training: {update: 3}", "x.yaml: training.update: unknown key; did you mean updates?"),
        (
            "tasks: {reasoning: {widht_min: 3}}",
            "x.yaml: tasks.reasoning.widht_min: unknown key; did you mean width_min?",
        ),
        ("tasks: {reasoning: {width_min: 91}}", "width_min: 91 is above width_max 90"),
        (
            "tasks: {reasoning: {lock_count_odds: {1: 0.1}}}",
            "must be at least 0 and sum to 1, and sum to 0.6",
        ),
        (
            "tasks: {reasoning: {environment: lock}}",
            "environment: unknown environment lock; did you mean locks?",
        ),
        ("tasks: {reasoning: null}", "tasks.reasoning: the scale has no such task, and row sao trains on it"),
        ("training: {updates: 90}", "evaluation.steps: 120 lies beyond training.updates 90"),
        ("evaluation: {steps: [100, 40]}", "evaluation.steps: [100, 40] must ascend"),
        ("evaluation: {steps: [40, 40, 100]}", "must ascend"),
        ("evaluation: {steps: [24, 120]}", "evaluation.steps: lacks [48]"),
        ("evaluation: {steps: [48, 96]}", "evaluation.steps: lacks [120]"),
        ("seeds: []", "seeds: list should have at least 1 item"),
        ("seeds: [1, 1]", "seeds: [1, 1] must be distinct"),
        ("model: {attention_heads: 3}", "model.attention_heads: 3 does not divide hidden_size 64"),
        ("model: {key_value_heads: 3}", "model.key_value_heads: 3 does not divide attention_heads 4"),
        ("model: {experts_per_token: 9}", "model.experts_per_token: 9 is above experts 8"),
        ("overlong: {buffer_tokens: 136}", "overlong.buffer_tokens: 136 is above max_action_tokens 135"),
        ("extends: smoke", "key extends is stated twice"),
    ],
)
def test_faults_of_a_scale_name_file_key_and_mend(experiments: Path, text: str, message: str) -> None:
    error = scale_fault(experiments, text)
    assert error.startswith("experiments/scales/x.yaml: ")
    assert message in error


@pytest.mark.parametrize(
    ("base", "text", "message"),
    [
        ("cpu", "clock: null", "clock: is missing; backend local needs it"),
        ("cpu", "openrlhf: null\nlogging: {tensorboard: true}", "logging: backend local does not use it"),
        ("cpu", "backend: openrlhf", "openrlhf: is missing; backend openrlhf needs it"),
        ("cpu", "model: {path: Qwen/x}", "model: vocabulary_size: is missing"),
        (
            "cpu",
            "model: {vocabulary_size: 9}",
            "model: path: is missing; revision and vocabulary_size belong",
        ),
        ("openrlhf_smoke", "clock: {sync_interval: 8}", "clock.update_ticks: is missing"),
        ("openrlhf_smoke", "job: null", "job: is missing; backend openrlhf needs it"),
        (
            "openrlhf_smoke",
            "sampler: {rounding: fp8}",
            "sampler.rounding: fp8 is the local sampler's; set none",
        ),
        (
            "openrlhf_smoke",
            "openrlhf: {sync_backend: nccl}",
            "openrlhf.sync_backend: without device: cuda set gloo",
        ),
        ("openrlhf_smoke", "openrlhf: {zero_stage: 1}", "openrlhf.zero_stage: must be 2 or 3, and is 1"),
        (
            "openrlhf_smoke",
            "openrlhf: {ring_attention: 2}",
            "packing: false, and ring_attention 2 shares packed",
        ),
        (
            "openrlhf_smoke",
            "openrlhf: {max_tokens_per_gpu: 64}",
            "packing: false, and max_tokens_per_gpu sizes",
        ),
        ("openrlhf_smoke", "sft: {data: x}", "sft.teacher: is missing; state it"),
        (
            "paper_math",
            "openrlhf: {parameter_type: float32}",
            "openrlhf.parameter_type: OpenRLHF trains in bf16",
        ),
        ("paper_math", "openrlhf: {ring_attention: 3}", "cluster.actor: 32 processes are not divisible by"),
        (
            "paper_math",
            "openrlhf: {max_tokens_per_gpu: 8192}",
            "openrlhf.max_tokens_per_gpu: 8192 x ring_attention 8 is below sampler.max_tokens 131072",
        ),
        ("paper_math", "cluster: {actor: {processes_per_node: 16}}", "16 is above job.gpus_per_node 8"),
        ("gpu_openrlhf", "openrlhf: {sync_backend: nccl}", "joins no two processes on one GPU; set gloo"),
        ("gpu_openrlhf", "cluster: {engines: {tensor_parallel: 2}}", "cluster.engines: more than one GPU"),
        (
            "gpu_openrlhf",
            "cluster: {critic: {processes_per_node: 2}}",
            "cluster.critic: more than one GPU, where processes share them",
        ),
        ("paper_math", "backend: local", "clock: is missing; backend local needs it"),
        (
            "paper_math",
            "model: {path: null, vocabulary_size: null}",
            "warm_start: a model that is built here",
        ),
        ("paper_math", "model: {revision: main}", "model.revision: string should match"),
    ],
)
def test_faults_in_the_blocks_of_a_backend_name_the_mend(
    experiments: Path, base: str, text: str, message: str
) -> None:
    (experiments / "scales" / "x.yaml").write_text(f"extends: {base}\n{text}\n")
    error = fault(load_scale, "x")
    assert error.startswith("experiments/scales/x.yaml: ")
    assert message in error.replace("String", "string")


def test_absent_optional_keys_are_no_part_of_the_settings() -> None:
    """So a key that is added later changes no digest of the runs that ship."""
    settings = resolve("sao", "cpu", 0).settings()
    assert not {"device", "sft", "openrlhf", "cluster", "job", "logging"} & settings.keys()
    assert not {"path", "revision", "head_size", "vocabulary_size"} & settings["model"].keys()
    assert settings["training"]["max_staleness"] is None, "null is a value of other keys"
    assert "clock" not in resolve("sao", "openrlhf_smoke", 0).settings()


def test_jobs_and_logging_are_no_part_of_the_digest(experiments: Path) -> None:
    def digest(text: str) -> str:
        (experiments / "scales" / "x.yaml").write_text(f"extends: paper_math\n{text}\n")
        return resolve("sao", "x", 0).digest()

    before = digest("")
    assert digest("job: {hours: 24, gpu_memory_gb: 141}\nlogging: {wandb: sao}") == before
    assert digest("cluster: {actor: {nodes: 2}}") != before


def test_paper_scales_have_the_papers_settings() -> None:
    for row, scale in (("sao", "paper_math"), ("sao_swe", "paper_swe"), ("sao_online", "paper_writing")):
        run = resolve(row, scale, 0)
        assert run.model.path == "Qwen/Qwen3-30B-A3B-Thinking-2507"
        assert (run.training.batch_trajectories, run.training.max_staleness) == (128, 4)
        assert run.training.learning_rate == 1e-6
        assert run.critic is not None
        assert run.critic.learning_rate_factor * run.training.learning_rate == pytest.approx(5e-6)
    math, swe = resolve("sao", "paper_math", 0), resolve("sao_swe", "paper_swe", 0)
    assert (math.task.max_turns, swe.task.max_turns) == (50, 300)
    assert math.sampler.max_tokens == swe.sampler.max_tokens == 131072
    assert math.sft is not None and math.sft.epochs == 3 and swe.sft is None
    assert math.value_pretraining.rollouts == 50 * 128
    assert (1 - swe.objective.eps_low, 1 + swe.objective.eps_high) == pytest.approx((0.2, 4.0))
    assert resolve("grpo_dis_swe", "paper_swe", 0).prompts_per_batch == 16


def test_batch_must_be_divisible(experiments: Path) -> None:
    (experiments / "scales" / "x.yaml").write_text("extends: cpu\ntraining: {batch_trajectories: 60}\n")
    assert resolve("sao", "x", 0).training.batch_trajectories == 60
    assert "training.batch_trajectories: 60 is not divisible by sampling.group_size 8" in fault(
        resolve, "grpo_dis", "x", 0
    )
    (experiments / "rows" / "y.yaml").write_text("title: y\nminibatches_per_batch: 3\n")
    assert "64 is not divisible by minibatches_per_batch 3" in fault(resolve, "y", "cpu", 0)


def test_extends_must_lead_to_a_scale(experiments: Path) -> None:
    folder = experiments / "scales"
    (folder / "x.yaml").write_text("extends: cpuu\n")
    assert fault(load_scale, "x") == "experiments/scales/x.yaml: extends: no scale cpuu; did you mean cpu?"
    (folder / "x.yaml").write_text("extends: y\n")
    (folder / "y.yaml").write_text("extends: x\n")
    assert "x -> y -> x is a circle" in fault(load_scale, "x")


@pytest.mark.parametrize(
    "content", [b"- 1\n", b"", b"title: \xff\n", b"a: b: c\n", b"title: !!python/object:os.x {}\n"]
)
def test_files_that_are_no_mapping_are_refused(experiments: Path, content: bytes) -> None:
    (experiments / "rows" / "x.yaml").write_bytes(content)
    message = fault(load_row, "x")
    assert message.startswith("experiments/rows/x.yaml: ") and "\n" not in message


def test_unknown_names_suggest_the_closest() -> None:
    assert fault(load_row, "vap0") == "experiments/rows: no row vap0; did you mean vapo?"
    assert fault(load_scale, "cup") == "experiments/scales: no scale cup; did you mean cpu?"
    assert fault(resolve, "sao", "cpu", -1).startswith("seed: ")


def test_a_row_must_state_its_own_title(experiments: Path) -> None:
    (experiments / "rows" / "x.yaml").write_text("critic: {updates_per_batch: 1}\n")
    assert fault(load_row, "x") == "experiments/rows/x.yaml: title: is missing; a row states its own"


def test_numbers_may_use_exponents(experiments: Path) -> None:
    (experiments / "rows" / "x.yaml").write_text("title: x\nobjective: {eps_low: 3e-1, eps_high: 5E0}\n")
    objective = load_row("x").objective
    assert (objective.eps_low, objective.eps_high) == (0.3, 5.0)


def test_sources_name_paper_decision_scale_and_row() -> None:
    source = {key: origin for key, _, origin in config.sources("vapo", "smoke")}
    assert source["objective.clip_high"] == "row vapo.yaml"
    assert source["critic.value_clip"] == "decision"
    assert source["advantage.kind"] == "paper, eq. 4-5"
    assert source["training.updates"] == "scale smoke.yaml"
    assert source["model.hidden_size"] == "scale cpu.yaml"
    assert source["task.pool_instances"] == "scale smoke.yaml"
    assert source["task.max_turns"] == "scale cpu.yaml"
    assert {key: origin for key, _, origin in config.sources("grpo_dis", "cpu")}[
        "critic"
    ] == "row grpo_dis.yaml"
    assert {key: origin for key, _, origin in config.sources("sao", "cpu")}["objective.eps_low"] == "paper"


def test_command_line(capsys: pytest.CaptureFixture[str], experiments: Path) -> None:
    assert config.main(["show", "vapo", "--scale", "cpu", "--seed", "2"]) == 0
    shown = capsys.readouterr().out
    assert (
        "advantage.alpha" in shown
        and "row vapo.yaml" in shown
        and resolve("vapo", "cpu", 2).digest() in shown
    )
    assert config.main(["check"]) == 0
    assert "25 rows at 18 scales are valid" in capsys.readouterr().out
    assert config.main(["show", "vap"]) == 2
    assert "did you mean vapo?" in capsys.readouterr().err
    (experiments / "rows" / "vapo.yaml").write_text("title: x\ncritic: {freezed: none}\n")
    assert config.main(["check"]) == 2
    assert (
        capsys.readouterr().err
        == "experiments/rows/vapo.yaml: critic.freezed: unknown key; did you mean frozen?\n"
    )


def test_import_needs_neither_torch_nor_pandas() -> None:
    code = "import sys, sao.config, sao.runlog; print({'torch', 'pandas', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_documents_are_current() -> None:
    for path in documentation.DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        assert documentation.filled(text) == text, f"{path.name}: run python -m sao.documentation"
        assert "<!-- table: " in text


def test_every_key_has_a_meaning() -> None:
    for table in ("row", "scale", "locks", "style", "math", "swe", "swe_tiny", "writing"):
        for line in documentation.tables()[table].splitlines()[2:]:
            assert all(cell.strip() for cell in line.strip("|").split("|")), line
