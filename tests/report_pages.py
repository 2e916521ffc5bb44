"""Reports of made-up runs, and a reader of their HTML, for the tests of the report."""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from math import log
from pathlib import Path
from typing import Any

from synthetic_runs import write_run, write_warm_start

from analysis.report.__main__ import main
from analysis.trace import FILE
from sao.runlog import TRAJECTORY_COLUMNS, append_records

OURS = (0.40, 0.45, 0.50, 0.55, 0.60)
COLLAPSED = (0.40, 0.50, 0.20, 0.10, 0.10)
VOID = {"meta", "link", "br", "input", "img", "hr"}


def trajectory(step: int, problem: str, reward: float, **changed: Any) -> dict[str, Any]:
    """Prompt of two tokens, an action of two, an observation of one, an action of one."""
    return {
        "step": step,
        "problem_id": problem,
        "label": "1 lock",
        "status": "completed",
        "reward": reward,
        "token_ids": [1, 2, 3, 4, 5, 6],
        "token_texts": ["<bos>", "<script>alert(1)</script>", "?", "3", "below", "!"],
        "action_mask": [0, 0, 1, 1, 0, 1],
        "rollout_logprobs": [None, None, -1.0, -2.0, None, -0.5],
        "trainer_logprobs": [None, None, -1.0, -2.0 + log(0.5), None, -0.5],
        "values": [None, None, 0.25, 0.5, None, 0.8],
        "advantages": [None, None, 0.1, -0.2, None, 0.0],
        "policy_versions": [-1, -1, step, step, -1, step],
    } | changed


def write_results(folder: Path) -> Path:
    """SAO with three seeds and trajectories, GRPO with and without DIS with two, VAPO stopped half-way."""
    write_warm_start(folder, "locks", 0.25)
    for seed in range(3):
        path = write_run(folder, "sao", seed, OURS, entropy=0.5)
        if seed == 0:
            solved = {("abc1", 24): 1.0, ("abd2", 24): 0.0, ("abc1", 120): 0.0, ("abd2", 120): 1.0}
            records = [trajectory(step, problem, reward) for (problem, step), reward in solved.items()]
            append_records(path / FILE, TRAJECTORY_COLUMNS, records)
    for seed in range(2):
        write_run(folder, "grpo_dis", seed, OURS)
        write_run(folder, "grpo_vanilla", seed, COLLAPSED)
    write_run(folder, "vapo", 0, OURS[:2], finished=False)
    return folder


def write_report(runs: Path, out: Path, *arguments: str) -> str:
    main(["--runs", str(runs), "--out", str(out), *arguments])
    return out.read_text(encoding="utf-8")


@dataclass
class Page(HTMLParser):
    """What the tests ask of a page: ids, links, headings and drawings in their order, its text."""

    ids: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    unclosed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    @classmethod
    def read(cls, text: str) -> "Page":
        page = cls()
        page.feed(text)
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.elements.append((tag, given))
        if identifier := given.get("id"):
            self.ids.append(identifier)
        if tag == "a" and (href := given.get("href")):
            self.links.append(href)
        if tag not in VOID:
            self.unclosed.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.unclosed.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.unclosed and self.unclosed[-1] == tag, f"</{tag}> closes {self.unclosed[-3:]}"
        self.unclosed.pop()


def section(text: str, identifier: str) -> str:
    """The page of that id, from its start to the next one's."""
    start = text.index(f'<section class="page" id="{identifier}"')
    end = text.find('<section class="page"', start + 1)
    return text[start:end] if end > 0 else text[start:]
