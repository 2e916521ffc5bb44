"""Schema of the tasks that draw their prompts from a public data set, at the scales of the paper."""

import re
from typing import Literal, Self

from pydantic import Field, model_validator

from sao.config_rows import Block, count, key


class DataTask(Block):
    """What tasks on a data set share; experiments/data.yaml says where the set comes from."""

    name: str = key("name of the task in tables and folders", pattern=r"^[a-z][a-z0-9_]*$")
    data: str = key("set of experiments/data.yaml that training draws its prompts from", min_length=1)
    max_tokens: int = count("longest trajectory: prompt, actions and observations (tokens)")
    max_turns: int = count("most actions of a trajectory")
    benchmarks: tuple[str, ...] = key("benchmarks that trained policies are evaluated on", min_length=1)


class MathTask(DataTask):
    environment: Literal["math"] = key("competition mathematics with the Python tool")


class Scaffolded(Block):
    """Where an agent works on a task of software engineering, how it is graded, and its limits in seconds."""

    workspace: Literal["docker", "apptainer", "remote", "local"] = key(
        "where the agent works: an image of the task in Docker or Apptainer, agent servers that run already, "
        "or a folder in bubblewrap"
    )
    grading: Literal["docker", "bubblewrap"] = key("what the harness runs the tests in")
    wall_seconds: int = count("longest work on a task (seconds)")
    test_seconds: int = count("longest run of a task's tests (seconds)")
    held_out_instances: int = count("tasks that evaluations sample and training does not")


class SWETask(Scaffolded, DataTask):
    environment: Literal["swe"] = key("software engineering: issues of public repositories, over OpenHands")


class TinySWETask(Scaffolded):
    environment: Literal["swe_tiny"] = key(
        "five tiny tasks made here in the form of SWE-Bench, over OpenHands"
    )
    name: str = key("name of the task in tables and folders", pattern=r"^[a-z][a-z0-9_]*$")
    tasks: int = key("how many of them, the easiest first", ge=3, le=5)
    max_tokens: int = count("longest trajectory: prompt, actions and observations (tokens)")
    max_turns: int = count("most actions of a trajectory")


class JudgedStyles(Block):
    """What tasks share whose texts a language model grades while the rewarded style switches."""

    judge: str = key("language model that grades quality and style, as its endpoint names it", min_length=1)
    candidates_first: tuple[str, ...] = key("styles to choose from in the first two phases", min_length=2)
    candidates_last: tuple[str, ...] = key("styles to choose from in the last phase", min_length=2)
    rewarded: tuple[str, str, str] = key("style that each phase rewards")
    switch_points: tuple[float, float] = key("shares of training at which the rewarded style switches")

    @property
    def phases(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The rewarded style and the candidates of each phase."""
        candidates = (self.candidates_first, self.candidates_first, self.candidates_last)
        return tuple(zip(self.rewarded, candidates, strict=True))

    @model_validator(mode="after")
    def _possible(self) -> Self:
        first, second = self.switch_points
        if not 0 < first < second < 1:
            raise ValueError(f"switch_points: {[first, second]} must ascend inside (0, 1)")
        for number, (style, candidates) in enumerate(self.phases, start=1):
            if style not in candidates:
                raise ValueError(
                    f"rewarded: {style} of phase {number} is no candidate there ({', '.join(candidates)})"
                )
        for style in {style for _, candidates in self.phases for style in candidates}:
            if not re.fullmatch("[a-z_]+", style) or style == "none":
                raise ValueError(f"candidates: {style!r} is no name of small letters that a judge can repeat")
        return self


class WritingTask(JudgedStyles, DataTask):
    environment: Literal["judged_style"] = key("short texts in a chosen style, graded by a language model")
    benchmarks: tuple[str, ...] = Field(
        default=(), description="benchmarks that trained policies are evaluated on"
    )
