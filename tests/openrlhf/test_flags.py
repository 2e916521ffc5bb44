"""The golden command lines against the parser and the validation of the installed OpenRLHF.

The parser stands in the command's `if __name__ == "__main__"`, which is run here with `train` replaced:
nothing starts, and nothing of OpenRLHF but its command line is imported.
"""

import ast
import importlib.util
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from sao.config import load_scale, resolve
from sao.openrlhf import flags, sft_flags

FOUND = importlib.util.find_spec("openrlhf")
pytestmark = pytest.mark.skipif(
    FOUND is None or FOUND.origin is None, reason="openrlhf is not installed"
)  # without an origin it is this folder that was found
FOLDER = Path(__file__).parents[1] / "golden"
GOLDEN = sorted(FOLDER.glob("paper_*.*.txt"))


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function from words to the arguments that `train` would get; SystemExit for unknown flags."""
    return parser_of("train_ppo_ray", monkeypatch)


def parser_of(command: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The same for any of OpenRLHF's commands."""
    package = Path(FOUND.submodule_search_locations[0])
    spec = importlib.util.spec_from_file_location("openrlhf.utils.config", package / "utils" / "config.py")
    hierarchy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hierarchy)
    monkeypatch.setitem(sys.modules, "openrlhf.utils.config", hierarchy)
    tree = ast.parse((package / "cli" / f"{command}.py").read_text(encoding="utf-8"))
    main = next(node for node in tree.body if isinstance(node, ast.If))
    kept = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    standard = [node for node in kept if node.names[0].name in ("argparse", "os", "datetime")]
    code = compile(ast.Module([*standard, *main.body], type_ignores=[]), command, "exec")

    def run(words: list[str]) -> Any:
        taken: list[Any] = []
        monkeypatch.setattr(sys, "argv", [command, *words])
        exec(code, {"train": taken.append})
        return taken[0]

    return run


def test_version_is_the_one_that_the_flags_are_written_for() -> None:
    from importlib.metadata import version

    assert version("openrlhf") == "0.11.2"


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.stem)
def test_golden_command_line_passes_parser_and_validation(file: Path, parse: Any, capsys: Any) -> None:
    words = shlex.split(file.read_text().replace("\\\n", " "))
    assert words[:3] == ["python", "-m", flags.CLI]
    found = parse(words[3:])
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("[Warning]")]
    assert warnings == [], "OpenRLHF would run with other settings than those stated"
    assert found.reward.remote_url == ["agent"]
    scale, row = file.stem.split(".")
    run = resolve(row, scale, 0)
    assert found.train.batch_size == 128 and found.data.max_len == run.sampler.max_tokens
    assert (found.critic.model_name_or_path is None) == (run.critic is None)


def test_golden_fine_tuning_passes_parser_and_validation(monkeypatch: Any, capsys: Any) -> None:
    words = shlex.split((FOLDER / "paper_math_sft.txt").read_text().replace("\\\n", " "))
    assert words[:3] == ["python", "-m", sft_flags.CLI]
    found = parser_of("train_sft", monkeypatch)(words[3:])
    assert "[Warning]" not in capsys.readouterr().out.replace("input_template", "")
    assert (found.train.max_epochs, found.data.max_len, found.ds.ring_attn_size) == (3, 131_072, 8)


def test_golden_value_pretraining_passes_parser_and_validation(parse: Any, capsys: Any) -> None:
    words = shlex.split((FOLDER / "paper_math_values.txt").read_text().replace("\\\n", " "))
    found = parse(words[3:])
    assert "[Warning]" not in capsys.readouterr().out
    assert found.critic.freezing_steps == 49 and found.critic.adam.lr == 5e-6


@pytest.mark.parametrize("scale", ["openrlhf_smoke", "openrlhf_smoke_two_ranks", "gpu_openrlhf"])
def test_every_row_of_the_small_scales_passes(scale: str, parse: Any) -> None:
    for row in load_scale(scale).rows():
        run = resolve(row, scale, 0)
        found = parse(flags.command_line(run, flags.planned_places(run)))
        assert found.train.seed == 0 and found.ds.attn_implementation == run.openrlhf.attention
        assert found.train.async_enable == (run.sampling.schedule == "asynchronous")


def test_an_unknown_flag_is_refused(parse: Any) -> None:
    run = resolve("sao", "paper_math", 0)
    words = flags.command_line(run, flags.planned_places(run))
    with pytest.raises(SystemExit):
        parse([*words, "--actor.learning_rate", "1"])


def test_no_flag_of_the_table_is_shortened(parse: Any) -> None:
    """argparse takes any unambiguous beginning of a flag, which another release may read otherwise."""
    source = (Path(FOUND.submodule_search_locations[0]) / "cli" / "train_ppo_ray.py").read_text()
    names = [flag.name for entry in flags.TABLE.values() for flag in entry.flags]
    names += [name for name, _ in flags.CONSTANT]
    for name in names:
        suffix = name.removeprefix("--actor.").removeprefix("--critic.")
        assert f'"{name}"' in source or f'"--{{prefix}}.{suffix}"' in source, name
