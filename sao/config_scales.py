"""Schema of a scale: tasks, model, batch, steps, clock and evaluation, shared by all rows."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from sao.config_rows import Block, count, key, share


class Pools(Block):
    name: str = key("name of the task in tables and folders", pattern=r"^[a-z][a-z0-9_]*$")
    pool_instances: int = count("training instances in the pool")
    held_out_instances: int = count("held-out instances that every evaluation samples")
    pool_seed: int = count("seed of both pools", minimum=0)


class LocksTask(Pools):
    environment: Literal["locks"] = key("hidden codes to be opened in turn with a compare tool")
    lock_count_odds: dict[int, float] = key("odds of each number of locks")
    width_min: int = key("narrowest range of a code (values)", ge=1, le=100)
    width_max: int = key("widest range of a code (values); widths are log-uniform", ge=1, le=100)
    budget_slack_odds: dict[float, float] = key(
        "odds of each number of turns per lock beyond what bisection needs"
    )
    max_turns: int = key("largest turn budget; sets the vocabulary and the longest episode", ge=2, le=100)
    demonstrator_early_commit_odds: float = share("odds that the demonstrator commits before it is certain")
    demonstrator_wild_guess_odds: float = share("odds that its guess ignores the bounds")
    demonstrator_certain_commit_odds: float = share("odds that it commits once one code is left")

    @field_validator("lock_count_odds", "budget_slack_odds")
    @classmethod
    def _sums_to_one(cls, odds: dict[Any, float]) -> dict[Any, float]:
        if any(value < 0 for value in odds.values()) or abs(sum(odds.values()) - 1) > 1e-9:
            raise ValueError(f"odds must be at least 0 and sum to 1, and sum to {sum(odds.values()):g}")
        return odds

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.width_min > self.width_max:
            raise ValueError(f"width_min: {self.width_min} is above width_max {self.width_max}; swap them")
        if min(self.lock_count_odds) < 1:
            raise ValueError("lock_count_odds: a task has at least 1 lock; remove the smaller counts")
        return self


class StyleTask(Pools):
    environment: Literal["style"] = key("short texts in a named style; the rewarded style switches twice")
    topics: int = count("topics a prompt may ask for", minimum=2)
    audiences: int = count("audience tokens that make instances distinct and carry no reward")
    style_tokens: int = count("tokens of each of the four styles")
    topic_tokens: int = count("tokens of each topic")
    neutral_tokens: int = count("tokens of no style and no topic")
    min_text_tokens: int = count("shortest text that counts (tokens)")
    max_text_tokens: int = count("longest text (tokens)")
    min_topic_tokens: int = count("fewest tokens of the prompt's topic in the text")
    style_share: float = key("least share of the rewarded style among the text's style tokens", gt=0, le=1)
    switch_points: tuple[float, float] = key("shares of training at which the rewarded style switches")
    demonstrator_style_noise: float = share(
        "share of the demonstrator's style tokens taken from another style"
    )
    demonstrator_topic_noise: float = share("share of its topic tokens taken from another topic")
    demonstrator_short_odds: float = share("odds that its text is too short")
    demonstrator_malformed_odds: float = share("odds that it names no candidate style or never ends")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.min_text_tokens > self.max_text_tokens:
            raise ValueError(
                f"min_text_tokens: {self.min_text_tokens} is above max_text_tokens {self.max_text_tokens}"
            )
        first, second = self.switch_points
        if not 0 < first < second < 1:
            raise ValueError(f"switch_points: {[first, second]} must ascend inside (0, 1)")
        return self


class ArithmeticTask(Pools):
    environment: Literal["python_math"] = key("generated arithmetic that needs the Python tool")
    digits_min: int = count("fewest digits of a problem's numbers")
    digits_max: int = count("most digits of a problem's numbers")
    max_tokens: int = count("longest trajectory: prompt, actions and observations (tokens)")
    max_turns: int = count("most actions of a trajectory")
    vocabulary_size: int = count("most tokens of the tokenizer, which is trained on the task's texts")
    benchmarks: tuple[str, ...] = key("benchmarks that the workflow's target `math` samples", min_length=1)
    demonstrator_guess_odds: float = share("odds that the demonstrator answers without the tool")
    demonstrator_slip_odds: float = share("odds that its code has a number wrong")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.digits_min > self.digits_max:
            raise ValueError(f"digits_min: {self.digits_min} is above digits_max {self.digits_max}")
        return self


Task = Annotated[LocksTask | StyleTask | ArithmeticTask, Field(discriminator="environment")]


class Tasks(Block):
    """The task of each domain; null where the scale has none, which takes that domain's rows off its grid."""

    reasoning: Task | None = None
    coding: Task | None = None
    writing: Task | None = None


class Model(Block):
    hidden_size: int = count("width of the residual stream")
    layers: int = count("transformer layers")
    attention_heads: int = count("query heads")
    key_value_heads: int = count("key and value heads")
    experts: int = count("experts per layer")
    experts_per_token: int = count("experts that each token visits")
    expert_intermediate_size: int = count("width of an expert")
    initializer_range: float = key("standard deviation of the initial weights", gt=0)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.hidden_size % self.attention_heads:
            raise ValueError(
                f"attention_heads: {self.attention_heads} does not divide hidden_size {self.hidden_size}"
            )
        if self.attention_heads % self.key_value_heads:
            raise ValueError(
                f"key_value_heads: {self.key_value_heads} does not divide "
                f"attention_heads {self.attention_heads}"
            )
        if self.experts_per_token > self.experts:
            raise ValueError(f"experts_per_token: {self.experts_per_token} is above experts {self.experts}")
        return self


class WarmStart(Block):
    steps: int = count("supervised steps on the demonstrator's episodes")
    batch_size: int = count("episodes per step")
    learning_rate: float = key("peak learning rate", gt=0)
    demonstrations: int = count("episodes in the set")
    observation_weight: float = share("weight of an observation token in the loss; action tokens have 1")


class ValuePretraining(Block):
    rollouts: int = count("rollouts of the warm-started policy")
    epochs: int = count("passes over them")
    batch_trajectories: int = count("trajectories per critic update")
    learning_rate: float = key("peak learning rate", gt=0)


class Training(Block):
    batch_trajectories: int = count("trajectories per batch, for all rows alike")
    updates: int = count("batches that update the policy")
    learning_rate: float = key("policy's learning rate", gt=0)
    max_staleness: int | None = key("oldest weight version kept, in updates behind; null keeps all", ge=0)


class Sampler(Block):
    slots: int = count("trajectories decoded at once")
    max_tokens: int = count("longest trajectory, prompt included (tokens)")
    rounding: Literal["fp8", "none"] = key("rounding of the sampler's copy of the weights")


class Clock(Block):
    """Virtual time of the local engine: one tick samples one token in every busy slot."""

    sync_interval: int = count("policy updates between two loads of new weights by the sampler")
    update_ticks: int = count("ticks that one update occupies the trainer", minimum=0)
    queue_limit_batches: int = count("finished batches that may wait before the sampler starts no new prompt")
    latency_shape: float = key("shape of the Pareto-distributed grading latency", gt=0)
    latency_scale_ticks: float = key("scale of the grading latency (ticks); 0 is none", ge=0)
    latency_max_ticks: int = count("longest grading latency (ticks)", minimum=0)


class Evaluation(Block):
    steps: tuple[int, ...] = key("policy updates after which the held-out set is sampled", min_length=1)
    temperature: float = key("sampling temperature in evaluation", gt=0)
    runs_per_problem: int = count("samples per held-out instance")


class Overlong(Block):
    """Soft penalty on long trajectories (DAPO), for rows with sampling.overlong_shaping."""

    max_action_tokens: int = count("action tokens at which the whole penalty applies")
    buffer_tokens: int = count("tokens before it over which the penalty grows linearly")
    penalty: float = key("largest penalty (reward)", ge=0)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.buffer_tokens > self.max_action_tokens:
            raise ValueError(
                f"buffer_tokens: {self.buffer_tokens} is above max_action_tokens {self.max_action_tokens}"
            )
        return self


class ScaleSettings(Block):
    """What a scale sets for all rows alike."""

    backend: Literal["local", "openrlhf"] = key("engine that trains and samples")
    model: Model
    warm_start: WarmStart
    value_pretraining: ValuePretraining
    training: Training
    sampler: Sampler
    clock: Clock
    evaluation: Evaluation
    checkpoint_interval: int = count("policy updates between two checkpoints")
    overlong: Overlong

    @model_validator(mode="after")
    def _evaluation_steps(self) -> Self:
        steps, updates = self.evaluation.steps, self.training.updates
        if list(steps) != sorted(set(steps)) or steps[0] < 1:
            raise ValueError(f"evaluation.steps: {list(steps)} must ascend from 1 or more, each step once")
        if steps[-1] > updates:
            raise ValueError(
                f"evaluation.steps: {steps[-1]} lies beyond training.updates {updates}; remove it"
            )
        if missing := sorted({max(1, round(0.4 * updates)), updates} - set(steps)):
            raise ValueError(
                f"evaluation.steps: lacks {missing}: tables read 40% of the updates and the last; add them"
            )
        return self


class ScaleConfig(ScaleSettings):
    """A scale file merged over the one it extends."""

    name: str
    title: str = key("name in tables and captions", min_length=1)
    seeds: tuple[int, ...] = key("seeds of the grid", min_length=1)
    tasks: Tasks

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) < len(seeds) or min(seeds) < 0:
            raise ValueError(f"{list(seeds)} must be distinct and at least 0")
        return seeds
