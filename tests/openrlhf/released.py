"""A tiny released model with a chat template, which has some problems and texts by heart, and its scales."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from test_values import copied_experiments

from evaluation.math.synthetic import KINDS, Demonstrator, corpus, problem_of
from evaluation.writing.environment import judged_environment
from evaluation.writing.lexicon import STYLE_WORDS
from sao import config
from sao.config_tasks import WritingTask
from sao.environments.base import Instance
from sao.environments.chat_format import PYTHON_TOOL, ChatFormat
from sao.environments.python_math import question
from sao.environments.small_tokenizer import small_tokenizer
from sao.environments.writing import messages
from sao.local.model import build_policy, export_policy
from sao.local.packed_batch import optimizer_step
from sao.local.warm_start import imitation_loss

DIGITS = (1, 2)
PROBLEMS, KNOWN, REQUESTS, STEPS, MOST_TOKENS = 12, 8, 12, 90, 320
SIMPLE = ("product", "fraction")  # integers, and an answer that only the graders can compare
STYLES = {
    "candidates_first": ["academic", "cute"],
    "candidates_last": ["academic", "cute"],
    "rewarded": ["cute", "academic", "cute"],
    "switch_points": [0.4, 0.725],
    "judge": "scripted",
}
WRITING: dict[str, Any] = {
    "name": "writing",
    "environment": "judged_style",
    "data": "tiny_requests",
    "max_tokens": MOST_TOKENS,
    "max_turns": 1,
    **STYLES,
}
MATH: dict[str, Any] = {
    "name": "math",
    "environment": "math",
    "data": "tiny_problems",
    "max_tokens": MOST_TOKENS,
    "max_turns": 3,
    "benchmarks": ["aime_2025"],
}


def problems() -> list[Instance]:
    """The problems of the data set, each once."""
    rng = np.random.default_rng(3)
    kinds = [KINDS[name] for name in SIMPLE]
    drawn = (kinds[number % len(kinds)].instance(rng, DIGITS) for number in range(1000))
    return list(dict.fromkeys(drawn))[:PROBLEMS]


def requests() -> list[str]:
    return [f"Write about rain {number}." for number in range(REQUESTS)]


def save_released_model(folder: Path) -> int:
    """Write the model and its tokenizer; returns the tokens of its vocabulary."""
    torch.set_num_threads(1)
    tokenizer = small_tokenizer(corpus(np.random.default_rng(1), 400, DIGITS), 480)
    chat = ChatFormat(tokenizer, [PYTHON_TOOL])
    rng, solve = np.random.default_rng(0), Demonstrator(0.0, 0.0, DIGITS)
    known = [(one, solve.solution(one, rng)) for one in problems()[:KNOWN]]
    examples = [chat.training_example([*question(problem_of(one)), *solution]) for one, solution in known]
    examples += _texts(tokenizer)
    assert max(len(token_ids) for token_ids, _ in examples) < MOST_TOKENS
    torch.manual_seed(0)
    policy = build_policy(config.load_scale("openrlhf_smoke").model, len(tokenizer), MOST_TOKENS, 0)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=6e-3)
    for _ in range(STEPS):
        loss = imitation_loss(policy, examples, observation_weight=0.0)
        optimizer_step(policy, optimizer, loss, 1.0)
    export_policy(policy, folder, tokenizer)
    return len(tokenizer)


def _texts(tokenizer: Any) -> list[tuple[list[int], list[bool]]]:
    """An answer to each request, half of them in each style."""
    task = WritingTask.model_validate(json.loads(json.dumps(WRITING)), strict=False)
    writing = judged_environment(task, tokenizer, requests(), None)
    examples = []
    for number, instance in enumerate([*writing.instances("train"), *writing.instances("held_out")]):
        word = STYLE_WORDS["cute" if number % 2 else "academic"][0]
        answer = {"role": "assistant", "content": word, "reasoning_content": ""}
        examples.append(writing.chat.training_example([*messages(instance, writing.phases[0]), answer]))
    return examples


def make_scales(folder: Path) -> Path:
    """Experiments with the scales `tiny_math`, `tiny_taught` and `tiny_writing`, and data; their folder."""
    experiments = copied_experiments(folder)
    size = save_released_model(folder / "released")
    data = folder / "results" / "data"
    data.mkdir(parents=True)
    posed = [problem_of(instance) for instance in problems()]
    rows = {
        "tiny_problems": [{"id": one.problem_id, "text": one.text, "answer": one.answer} for one in posed],
        "tiny_requests": [{"id": text, "text": text, "answer": ""} for text in requests()],
    }
    for name, lines in rows.items():
        (data / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    sft = {
        "data": "tiny_problems",
        "teacher": str(folder / "released"),  # it learns what it says itself
        "samples_per_problem": 2,
        "epochs": 1,
        "batch_trajectories": 4,
        "learning_rate": 1e-4,
        "warm_up_share": 0.1,
    }
    for name, tasks, more in (
        ("tiny_math", {"reasoning": MATH, "writing": None}, {}),
        ("tiny_taught", {"reasoning": MATH, "writing": None}, {"sft": sft}),
        ("tiny_writing", {"reasoning": None, "writing": WRITING}, {}),
    ):
        scale = {
            "extends": "openrlhf_smoke",
            "title": "a tiny released model",
            "model": {"path": str(folder / "released"), "vocabulary_size": size},
            "tasks": tasks,
            "warm_start": None,
            "value_pretraining": {"rollouts": 16, "batch_trajectories": 8},
            "training": {"batch_trajectories": 8, "updates": 2},
            "sampler": {"slots": 8, "max_tokens": MOST_TOKENS},
            "evaluation": {"steps": [1, 2]},
        }
        (experiments / "scales" / f"{name}.yaml").write_text(yaml.safe_dump(scale | more))
    return experiments
