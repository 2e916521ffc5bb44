"""An LLM judge against the rules of task `style`, on the shipped samples and on made-up verdicts."""

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judge_server import JudgeServer
from scipy import stats

from evaluation.writing import agreement
from evaluation.writing.lexicon import STYLE_WORDS
from evaluation.writing.style_texts import FILE, TextError, read_texts
from sao.config import resolve
from sao.environments.style import STYLES, Lexicon
from sao.runlog_files import read_records

LOGGED = Path(__file__).parents[1] / "results/logged/cpu/runs"
RUNS = [LOGGED / row / "seed0" for row in ("sao_online", "running_mean_online")]


def test_rules_on_the_words_are_the_logged_rewards() -> None:
    """What the reader says of each text is the reward that the environment gave the sample."""
    texts, left_out = read_texts(RUNS)
    lines = [line for run in RUNS for line in read_records(run / FILE)]
    assert len(texts) + left_out == len(lines) == 80
    rewards: dict[tuple[str, int, str], float] = {}
    for run in RUNS:
        rewards |= {
            (str(run), line["step"], line["problem_id"]): line["reward"] for line in read_records(run / FILE)
        }
    for text in texts:
        assert float(text.reward) == rewards.pop((text.run, text.step, text.problem_id))
    assert set(rewards.values()) == {0.0}  # what is left has no text to judge
    assert {text.rewarded for text in texts} == {"cute", "chuunibyou", "classical"}


def test_tokens_are_written_as_words() -> None:
    texts, _ = read_texts(RUNS[:1])
    line = read_records(RUNS[0] / FILE)[0]
    first = texts[0]
    action = [text for text, acts in zip(line["token_texts"], line["action_mask"], strict=True) if acts][1:-1]
    words = first.text.split()
    assert len(words) == len(action)
    for word, token in zip(words, action, strict=True):
        kind, _, index = token.rpartition(" ")
        if kind in STYLES:
            assert word == STYLE_WORDS[kind][int(index)]
    assert set(first.candidates) == set(line["token_texts"][3:6])
    assert "Write 10 to 24 words about" in first.request


def test_every_token_of_scale_cpu_has_a_word() -> None:
    lexicon = Lexicon(resolve("sao_online", "cpu", 0).task)  # type: ignore[arg-type]
    words = [word for words in STYLE_WORDS.values() for word in words]
    assert len(words) == len(set(words)) == sum(map(len, lexicon.style_tokens))


def test_kappa_of_a_known_table() -> None:
    """20 yes-yes, 5 yes-no, 10 no-yes, 15 no-no: observed .70, expected .50, kappa .40."""
    first = ["y"] * 25 + ["n"] * 25
    second = ["y"] * 20 + ["n"] * 5 + ["y"] * 10 + ["n"] * 15
    assert agreement.cohens_kappa(first, second) == pytest.approx(0.4)
    found = agreement.agreement(first, second)
    assert found["agreement"] == pytest.approx(0.7)
    exact = stats.binomtest(35, 50).proportion_ci(0.95, method="exact")
    assert (found["agreement_low"], found["agreement_high"]) == pytest.approx((exact.low, exact.high))


def test_kappas_interval_is_that_of_a_loop() -> None:
    generator = np.random.default_rng(3)
    first = list(generator.choice(["a", "b", "c"], 60))
    second = [one if generator.random() < 0.7 else str(generator.choice(["a", "b", "c"])) for one in first]
    found = agreement.agreement(first, second)
    kappas = []
    for _ in range(3000):
        rows = generator.integers(60, size=60)
        kappas.append(agreement.cohens_kappa([first[row] for row in rows], [second[row] for row in rows]))
    low, high = np.quantile(kappas, [0.025, 0.975])
    assert found["kappa_low"] == pytest.approx(low, abs=0.03)
    assert found["kappa_high"] == pytest.approx(high, abs=0.03)


def test_kappa_of_one_verdict_alone_is_undefined() -> None:
    assert np.isnan(agreement.cohens_kappa([1, 1], [1, 1]))
    found = agreement.agreement([1, 1], [1, 1])
    assert found["agreement"] == 1 and np.isnan(found["kappa_low"])
    with pytest.raises(ValueError, match="nothing to compare"):
        agreement.agreement([], [])


def by_majority(body: dict[str, Any], number: int) -> str:
    """Names the style that 70% of the style words are in; gives no verdict on texts with one certain word."""
    prompt = body["messages"][-1]["content"]
    text = prompt.rsplit("===\n", 2)[1]
    styles = [name for word in text.split() for name in STYLES if word in STYLE_WORDS[name]]
    best = max(STYLES, key=styles.count)
    listed = set(re.findall(r"^- (\w+):", prompt, re.MULTILINE))
    style = best if best in listed and styles.count(best) >= 0.7 * len(styles) and styles else "none"
    if "sealed-eye" in text:
        return "Hm."
    return f"Counted.\nQUALITY: 1\nSTYLE: {style}"


def test_command_reports_and_asks_nothing_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with JudgeServer(by_majority).serve() as server:
        command = [*map(str, RUNS), "--judge-url", server.url, "--judge-model", "m", "--out", str(tmp_path)]
        assert agreement.main(command) == 0
        shown = capsys.readouterr().out
        asked = len(server.requests)
        assert agreement.main(command) == 0
    texts, left_out = read_texts(RUNS)
    silent = [text for text in texts if "sealed-eye" in text.text.split()]
    assert silent and len(server.requests) == asked + 3 * len({text.text for text in silent})
    lines = list(csv.DictReader((tmp_path / "agreement.csv").open(encoding="utf-8")))
    assert len(lines) == len(texts)
    decided = [line for line in lines if line["judge_style"]]
    assert len(decided) == len(texts) - len(silent)
    assert all(line["judge_style"] == line["rule_style"] for line in decided)
    good = sum(line["rule_quality"] == "1" for line in decided)
    assert f"| style | {len(decided)} | 100.0% [" in shown and "| 1.00 [1.00, 1.00] |" in shown
    assert f"| quality | {len(decided)} | {good / len(decided):.1%} [" in shown
    assert f"gave no verdict on {len(silent)} of them. {left_out} more samples" in shown
    assert (tmp_path / "agreement.md").read_text(encoding="utf-8") == shown
    log = [json.loads(line) for line in (tmp_path / "verdicts.jsonl").read_text().splitlines()]
    assert {line["verdict"] for line in log} >= {"undecided", "quality=1 style=none"}


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (LOGGED / "none", "is no run directory"),
        (LOGGED / "sao/seed0", "its task is locks, and the rules are those of style"),
        (LOGGED / "sao_online/seed1", "of published runs the first seed has them"),
    ],
)
def test_other_folders_are_refused(
    run: Path, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [str(run), "--judge-url", "http://127.0.0.1:9/v1", "--judge-model", "m", "--out", str(tmp_path)]
    assert agreement.main(command) == 2
    shown = capsys.readouterr().err
    assert message in shown and shown.count("\n") == 1


def test_larger_tasks_have_no_words(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(RUNS[0], run)
    spec = json.loads((run / "spec.json").read_text())
    spec["config"]["task"]["style_tokens"] = 30
    (run / "spec.json").write_text(json.dumps(spec))
    with pytest.raises(TextError, match="style_tokens 30: there are words for 8 only"):
        read_texts([run])


def test_judge_that_refuses_stops_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with JudgeServer(lambda body, number: 401).serve() as server:
        command = [str(RUNS[0]), "--judge-url", server.url, "--judge-model", "m", "--out", str(tmp_path)]
        assert agreement.main(command) == 2
    assert "refuses the key; set OPENAI_API_KEY" in capsys.readouterr().err
    assert not (tmp_path / "agreement.md").exists()
