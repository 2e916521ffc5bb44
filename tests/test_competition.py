"""Task `math`: a fetched set, a released model's chat format, the tool, and what may be missing."""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from math_standins import PlainGrader, PlainTool, call, ids, says, tokenizer

from evaluation import training_data
from evaluation.math import competition
from evaluation.math.competition import CompetitionEnvironment, competition_environment
from evaluation.math.sandbox_command import SandboxError
from evaluation.training_data import Row, checksum
from sao import train
from sao.config import ConfigError, load_scale, resolve
from sao.config_scales import Model
from sao.config_tasks import MathTask
from sao.environments import make_environment
from sao.runlog import RunDirectory, RunError

TASK = MathTask(
    name="math",
    environment="math",
    data="tiny_problems",
    max_tokens=400,
    max_turns=3,
    benchmarks=("aime_2025",),
)
ROWS = [Row(str(number), f"What is {number} * 7?", str(number * 7)) for number in range(2, 32)]


def model(path: Path, vocabulary_size: int = 512) -> Model:
    released = load_scale("paper_math").model
    return released.model_copy(update={"path": str(path), "vocabulary_size": vocabulary_size})


def write(results: Path, rows: list[Row], name: str = "tiny_problems") -> Path:
    file = results / "data" / f"{name}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"id": row.id, "text": row.text, "answer": row.answer}) for row in rows]
    file.write_text("".join(line + "\n" for line in lines))
    return file


@pytest.fixture
def results(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    request.addfinalizer(competition_environment.cache_clear)
    write(tmp_path / "results", ROWS)
    return tmp_path / "results"


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("released")
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def plain() -> CompetitionEnvironment:
    return CompetitionEnvironment(TASK, tokenizer(), ROWS, PlainGrader(), PlainTool())


def test_problems_are_posed_as_in_evaluation_and_graded_at_the_end(plain: CompetitionEnvironment) -> None:
    instance = next(one for one in plain.instances("train") if one.payload[0] == "What is 6 * 7?")
    episode = plain.start(instance, 0.5)
    prompt = tokenizer().decode(episode.prompt_ids)
    assert "What is 6 * 7?\n\nPut your final answer within \\boxed{}." in prompt
    assert "Tools: python" in prompt and prompt.endswith("<think>\n")
    result = episode.step(ids(call("print(6 * 7)")))
    assert not result.done and "42" in tokenizer().decode(result.observation_ids)
    result = episode.step(ids(says("42")))
    assert (result.done, result.reward, result.status) == (True, 1.0, "completed")
    assert plain.grader.given[-1][:2] == ("tiny_problems", "42")
    wrong = plain.start(instance, 0.5).step(ids(says("41")))
    assert (wrong.done, wrong.reward) == (True, 0.0)


def test_turns_and_tokens_are_limited(plain: CompetitionEnvironment) -> None:
    episode = plain.start(plain.instances("train")[0], 0.0)
    for _ in range(TASK.max_turns - 1):
        assert not episode.step(ids(call("1"))).done
    last = episode.step(ids(call("1")))
    assert (last.done, last.reward, last.status) == (True, 0.0, "truncated")
    long = plain.start(plain.instances("train")[0], 0.0)
    left = long.tokens_left
    assert left + len(long.prompt_ids) == TASK.max_tokens == plain.max_episode_tokens
    assert long.action_complete([5] * left) and not long.action_complete([5] * (left - 1))
    assert long.step([5] * left).status == "truncated"


def test_pools_follow_from_hashes_alone(
    plain: CompetitionEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def texts(environment: CompetitionEnvironment, split: str) -> set[str]:
        return {instance.payload[0] for instance in environment.instances(split)}

    assert len(plain.instances("held_out")) == 10, "a third of 30"
    assert texts(plain, "train") | texts(plain, "held_out") == {row.text for row in ROWS}
    turned = CompetitionEnvironment(TASK, tokenizer(), [*ROWS[::-1], ROWS[3]], PlainGrader(), PlainTool())
    assert texts(turned, "held_out") == texts(plain, "held_out") and len(turned.instances("train")) == 20
    monkeypatch.setattr(competition, "HELD_OUT", 4)
    few = CompetitionEnvironment(TASK, tokenizer(), ROWS, PlainGrader(), PlainTool())
    assert len(few.instances("held_out")) == 4 and texts(few, "held_out") < texts(plain, "held_out")


def test_a_released_model_has_no_demonstrator(plain: CompetitionEnvironment) -> None:
    with pytest.raises(ConfigError, match="no demonstrator"):
        plain.demonstration(np.random.default_rng(0))


@pytest.fixture
def environment(results: Path, released: Path) -> Iterator[CompetitionEnvironment]:
    made = make_environment(TASK, model(released), str(results))
    yield made
    made.tool.close()


def test_made_from_data_model_sandbox_and_graders(environment: CompetitionEnvironment) -> None:
    """The answer is a fraction that only the graders can compare; the code runs in the sandbox."""
    size = len(tokenizer())
    assert len(environment.vocabulary) == 512 and environment.vocabulary[size] == f"<id {size}>"
    instance = environment.instances("train")[0]
    episode = environment.start(instance, 0.0)
    shown = episode.step(ids(call("print(6 * 7)")))
    assert not environment.tool.unsandboxed and "\n42\n" in tokenizer().decode(shown.observation_ids)
    gold = instance.payload[1]
    assert episode.step(ids(says(f"\\frac{{{2 * int(gold)}}}{{2}}"))).reward == 1.0


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (None, r"is not there; data\.yaml has no set tiny_problems.*; add it there"),
        (["{"], r"line 1: is no JSON object with id, text and answer; mend or remove the line"),
        (['{"id": 1, "text": " ", "answer": "1"}'], "line 1: is no JSON object"),
        (['{"id": 1, "text": "a"}'], "line 1: is no JSON object"),
        (['{"id": 1, "text": "a", "answer": " "}'], "row 1 of tiny_problems has no answer; remove it"),
        (['{"id": 1, "text": "a", "answer": "1"}'], "1 problems leave a pool empty"),
    ],
)
def test_unusable_data_names_the_mend(
    lines: list[str] | None, message: str, results: Path, released: Path
) -> None:
    file = results / "data" / "tiny_problems.jsonl"
    file.unlink()
    if lines is not None:
        file.write_text("\n".join(lines) + "\n")
    with pytest.raises(ConfigError, match=f"task math: .*{message}"):
        make_environment(TASK, model(released), str(results))


def test_rows_must_be_those_of_the_lock_file(
    results: Path, released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "data.lock.yaml"
    monkeypatch.setattr(training_data, "LOCK", lock)
    lock.write_text(yaml.safe_dump({"tiny_problems": {"kept_sha256": checksum(ROWS)}}))
    assert training_data.fetched_rows("tiny_problems", str(results)) == ROWS
    write(results, ROWS[:-1])
    with pytest.raises(ConfigError, match=r"other rows than data\.lock\.yaml records for tiny_problems"):
        make_environment(TASK, model(released), str(results))


def test_missing_parts_name_the_mend(
    results: Path, released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"math trains a released model, and model\.path is not set"):
        make_environment(TASK, load_scale("smoke_math").model)
    with pytest.raises(
        ConfigError, match=r"model\.path: .*no tokenizer can be loaded.*fetch it: hf download"
    ):
        make_environment(TASK, model(tmp_path / "nowhere"), str(results))
    plain_text = tokenizer().__class__.from_pretrained(released)
    plain_text.chat_template = None
    plain_text.save_pretrained(tmp_path / "no_template")
    (tmp_path / "no_template" / "chat_template.jinja").unlink(missing_ok=True)
    with pytest.raises(ConfigError, match=r"task math: .*the tokenizer has no chat template"):
        make_environment(TASK, model(tmp_path / "no_template"), str(results))

    def refuse() -> None:
        raise SandboxError("bubblewrap is missing: install it")

    monkeypatch.setattr("evaluation.math.sandbox.PythonTool", refuse)
    with pytest.raises(ConfigError, match="task math: bubblewrap is missing"):
        make_environment(TASK, model(released), str(results))


def test_instances_go_to_other_processes(plain: CompetitionEnvironment) -> None:
    instance = plain.instances("train")[0]
    assert pickle.loads(pickle.dumps(instance)) == instance


def test_a_run_goes_on_with_its_own_rows_alone(results: Path, tmp_path: Path) -> None:
    run = resolve("sao", "paper_math", 0)
    run = run.model_copy(update={"task": TASK})
    first = train.training_data(run, str(results))
    assert first == {"set": "tiny_problems", "rows_sha256": checksum(ROWS)}
    assert train.training_data(resolve("sao", "cpu", 0), str(results)) is None
    with RunDirectory.open(tmp_path / "run", run, "command") as directory:
        directory.begin_attempt(first)
        directory.begin_attempt(first)
        record = json.loads((tmp_path / "run" / "provenance.json").read_text())
        assert record["data"] == first and len(record["attempts"]) == 2
        write(results, ROWS[:-1])
        with pytest.raises(RunError, match=r"was begun with other data .*tiny_problems.*begin anew"):
            directory.begin_attempt(train.training_data(run, str(results)))
