"""Fine-tuning of a tiny released model by OpenRLHF's own command: killed, resumed and sealed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from test_end_to_end import child_of, wait_for_the_end_of, wait_until_empty
from test_values import PREPARE, copied_experiments, wait_until
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sao import config, config_files, prepare
from sao.config_scales import Model
from sao.local.model import build_policy, load_policy

REPOSITORY = Path(__file__).parents[2]
WORDS = ["<pad>", "<user>", "<assistant>", "<end>", *["one", "two", "three", "four", "plus", "is"]]
EPOCHS, TRACES, BATCH = 30, 8, 4
TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)


def save_released(model: Model, folder: Path) -> None:
    """A policy with a tokenizer that has a chat template."""
    build_policy(model, len(WORDS), 64, 0).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of a fine-tuning that was killed with SIGKILL after a checkpoint and started again."""
    folder = tmp_path_factory.mktemp("fine_tuning")
    experiments, released = copied_experiments(folder), folder / "released"
    smoke = config.load_scale("openrlhf_smoke")
    save_released(smoke.model, released)
    scale = {
        "extends": "openrlhf_smoke",
        "title": "a tiny released model",
        "model": {"path": str(released), "vocabulary_size": len(WORDS)},
        "warm_start": None,
        "sft": {
            "data": "sft_prompts",
            "teacher": "nobody",
            "samples_per_problem": 1,
            "epochs": EPOCHS,
            "batch_trajectories": BATCH,
            "learning_rate": 1e-2,
            "warm_up_share": 0.1,
        },
        "sampler": {"max_tokens": 64},
        "checkpoint_interval": 10,
    }
    (experiments / "scales" / "tiny_tuned.yaml").write_text(yaml.safe_dump(scale))
    traces = folder / "results" / "data" / "sft_prompts_traces.jsonl"
    traces.parent.mkdir(parents=True)
    asked = {"role": "user", "content": "one plus two is"}
    told = {"role": "assistant", "content": "three"}
    traces.write_text(TRACES * (json.dumps({"messages": [asked, told], "tokens": 8}) + "\n"))
    checkpoints = folder / "results/tiny_tuned/prepare/locks/warm_start/checkpoints"
    process = start(experiments, folder / "results")
    wait_until(process, lambda: (checkpoints / "latest").exists())
    launcher = child_of(process.pid)
    process.kill()
    process.wait()
    wait_for_the_end_of(launcher)
    assert not (checkpoints.parent / "seal.json").exists()
    process = start(experiments, folder / "results")
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output[-6000:]
    (folder / "output").write_text(output)
    return folder / "results"


def start(experiments: Path, results: Path) -> subprocess.Popen[str]:
    words = ["warm-start", "--scale", "tiny_tuned", "--task", "locks", "--results", str(results)]
    return subprocess.Popen(
        [sys.executable, "-c", PREPARE, str(experiments), *words],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_the_policy_is_fine_tuned_and_sealed(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_files, "EXPERIMENTS", results.parent / "experiments")
    folder = prepare.require_preparation(str(results), "tiny_tuned", "locks", "warm_start")
    assert sorted(file.name for file in folder.iterdir()) == ["policy", "seal.json"]
    tuned, released = (
        load_file(place / "model.safetensors") for place in (folder / "policy", results.parent / "released")
    )
    assert tuned.keys() == released.keys()
    moved = [name for name in tuned if not torch.equal(tuned[name].float(), released[name].float())]
    assert "lm_head.weight" in moved


def test_it_goes_on_from_its_checkpoint(results: Path) -> None:
    """The second start has the first's steps behind it and ends at the last of all."""
    output = (results.parent / "output").read_text()
    consumed = int(re.search(r"consumed_samples: (\d+)", output)[1])
    assert 10 * BATCH <= consumed < EPOCHS * TRACES and consumed % (10 * BATCH) == 0


def test_nothing_is_left_where_temporary_files_lie(results: Path, temporary_files: Path) -> None:
    """Neither of torchrun that was killed nor of the one that ended."""
    wait_until_empty(temporary_files)


def test_it_answers_as_the_traces_do(results: Path) -> None:
    policy = load_policy(results / "tiny_tuned/prepare/locks/warm_start/policy")
    question = "<user> one plus two is <end> <assistant>"
    ids = torch.tensor([[WORDS.index(word) for word in question.split()]])
    assert WORDS[policy(input_ids=ids).logits[0, -1].argmax()] == "three"
