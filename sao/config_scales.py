"""Schema of a scale: tasks, model, batch, steps, clock and evaluation, shared by all rows."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from sao.config_cluster import Cluster, FineTuning, Job, Logging, OpenRLHF
from sao.config_rows import Block, count, key, optional, share
from sao.config_tasks import JudgedStyles, MathTask, SWETask, TinySWETask, WritingTask


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


class GeneratedWritingTask(JudgedStyles, Pools):
    environment: Literal["writing"] = key(
        "texts on generated requests in a chosen style, graded by a language model at an endpoint"
    )
    min_words: int = count("fewest words that a request asks for")
    max_words: int = count("most words that a request asks for")
    max_tokens: int = count("longest trajectory: prompt and text (tokens)")
    vocabulary_size: int = count("most tokens of the tokenizer, which is trained on the task's texts")
    demonstrator_style_noise: float = share(
        "share of the demonstrator's style words taken from another style"
    )
    demonstrator_short_odds: float = share("odds that its text has fewer words than asked for")

    @model_validator(mode="after")
    def _possible_words(self) -> Self:
        if self.min_words > self.max_words:
            raise ValueError(f"min_words: {self.min_words} is above max_words {self.max_words}")
        return self


Task = Annotated[
    LocksTask
    | StyleTask
    | ArithmeticTask
    | GeneratedWritingTask
    | MathTask
    | SWETask
    | TinySWETask
    | WritingTask,
    Field(discriminator="environment"),
]


class Tasks(Block):
    """The task of each domain; null where the scale has none, which takes that domain's rows off its grid."""

    reasoning: Task | None = None
    coding: Task | None = None
    writing: Task | None = None


class Model(Block):
    """The policy's network, a Qwen3-MoE: built here with these dimensions, or a released one of them."""

    path: str | None = optional("released model: its name on the Hugging Face Hub, or a folder", min_length=1)
    revision: str | None = optional("commit of the released model on the Hub", pattern=r"^[0-9a-f]{40}$")
    hidden_size: int = count("width of the residual stream")
    layers: int = count("transformer layers")
    attention_heads: int = count("query heads")
    key_value_heads: int = count("key and value heads")
    experts: int = count("experts per layer")
    experts_per_token: int = count("experts that each token visits")
    expert_intermediate_size: int = count("width of an expert")
    head_size: int | None = optional("width of a head; absent: hidden_size / attention_heads", ge=1)
    vocabulary_size: int | None = optional("tokens of the vocabulary; absent: those of the task", ge=1)
    initializer_range: float = key("standard deviation of the initial weights", gt=0)

    @property
    def head_dimension(self) -> int:
        """Width of an attention head."""
        return self.head_size or self.hidden_size // self.attention_heads

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.path is None and (self.revision or self.vocabulary_size):
            raise ValueError("path: is missing; revision and vocabulary_size belong to a released model")
        if self.path is not None and self.vocabulary_size is None:
            raise ValueError("vocabulary_size: is missing; state it as the model's config.json has it")
        if self.head_size is None and self.hidden_size % self.attention_heads:
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


def check_openrlhf(
    openrlhf: OpenRLHF, cluster: Cluster, job: Job, device: str | None, sampler: Sampler
) -> None:
    """Raises ValueError, naming the key, where the blocks of the OpenRLHF backend do not fit together."""
    if device is None and (openrlhf.sync_backend == "nccl" or openrlhf.attention.startswith("flash")):
        raise ValueError("openrlhf.sync_backend: without device: cuda set gloo, and attention: sdpa or eager")
    if device == "cuda" and openrlhf.parameter_type == "float32":
        raise ValueError("openrlhf.parameter_type: OpenRLHF trains in bf16 with CUDA; set bf16")
    if sampler.rounding != "none":
        raise ValueError(f"sampler.rounding: {sampler.rounding} is the local sampler's; set none")
    for name in ("actor", "critic"):
        processes = getattr(cluster, name).processes
        if processes % openrlhf.ring_attention:
            raise ValueError(
                f"cluster.{name}: {processes} processes are not divisible by openrlhf.ring_attention "
                f"{openrlhf.ring_attention}"
            )
    tokens = openrlhf.max_tokens_per_gpu
    if tokens is not None and tokens * openrlhf.ring_attention < sampler.max_tokens:
        raise ValueError(
            f"openrlhf.max_tokens_per_gpu: {tokens} x ring_attention {openrlhf.ring_attention} is below "
            f"sampler.max_tokens {sampler.max_tokens}; raise one of the two"
        )
    if device == "cuda" and cluster.one_node and cluster.processes > job.gpus_per_node:
        _check_shared_gpus(openrlhf, cluster)
    if not cluster.one_node and cluster.actor.processes_per_node > job.gpus_per_node:
        raise ValueError(
            f"cluster.actor.processes_per_node: {cluster.actor.processes_per_node} is above "
            f"job.gpus_per_node {job.gpus_per_node}"
        )


def _check_shared_gpus(openrlhf: OpenRLHF, cluster: Cluster) -> None:
    """NCCL joins no two processes on one GPU, and vLLM wants a GPU for each part of an engine."""
    if openrlhf.sync_backend == "nccl":
        raise ValueError("openrlhf.sync_backend: NCCL joins no two processes on one GPU; set gloo")
    for name in ("actor.processes", "critic.processes", "engines.tensor_parallel"):
        group, number = name.split(".")
        if getattr(getattr(cluster, group), number) > 1:
            raise ValueError(
                f"cluster.{group}: more than one GPU, where processes share them; set 1, or one_node: false"
            )


class ScaleSettings(Block):
    """What a scale sets for all rows alike."""

    backend: Literal["local", "openrlhf"] = key("engine that trains and samples")
    device: Literal["cuda"] | None = optional("cuda: train and sample on GPUs; absent: on CPU cores")
    model: Model
    warm_start: WarmStart | None = optional()
    sft: FineTuning | None = optional()
    value_pretraining: ValuePretraining
    training: Training
    sampler: Sampler
    clock: Clock | None = optional()
    evaluation: Evaluation
    checkpoint_interval: int = count("policy updates between two checkpoints")
    overlong: Overlong
    openrlhf: OpenRLHF | None = optional()
    cluster: Cluster | None = optional()
    job: Job | None = optional()
    logging: Logging | None = optional()

    @property
    def virtual_clock(self) -> Clock:
        """Virtual time of the local engine; ValueError at a scale of another backend."""
        if self.clock is None:
            raise ValueError(f"clock: backend {self.backend} has none")
        return self.clock

    @property
    def supervised_warm_start(self) -> WarmStart:
        """Fine-tuning of a model built here; ValueError at a scale with a released one."""
        if self.warm_start is None:
            raise ValueError(f"warm_start: the released model {self.model.path} has none")
        return self.warm_start

    @model_validator(mode="after")
    def _blocks_of_the_backend(self) -> Self:
        needed: tuple[str, ...] = ("clock",)
        foreign: tuple[str, ...] = ("openrlhf", "cluster", "logging")
        if self.backend == "openrlhf":
            needed, foreign = ("openrlhf", "cluster", "job"), ("clock",)
        for name in needed:
            if getattr(self, name) is None:
                raise ValueError(f"{name}: is missing; backend {self.backend} needs it")
        for name in foreign:
            if getattr(self, name) is not None:
                raise ValueError(f"{name}: backend {self.backend} does not use it; set null or remove it")
        return self

    @model_validator(mode="after")
    def _start_of_the_model(self) -> Self:
        if self.model.path is None and (self.warm_start is None or self.sft is not None):
            raise ValueError("warm_start: a model that is built here needs it, and sft a released one")
        if self.model.path is not None and self.warm_start is not None:
            raise ValueError(f"warm_start: the released model {self.model.path} has none; set null")
        if self.model.path is not None and self.backend == "local":
            raise ValueError("model.path: the local engine builds its models; set backend: openrlhf")
        return self

    @model_validator(mode="after")
    def _values_of_a_released_model(self) -> Self:
        settings = self.value_pretraining
        if self.model.path is None:
            return self
        if settings.epochs != 1:
            raise ValueError(
                f"value_pretraining.epochs: {settings.epochs}, but a released model trains on its rollouts "
                "as they come; set 1 and raise value_pretraining.rollouts"
            )
        if settings.rollouts % settings.batch_trajectories:
            raise ValueError(
                f"value_pretraining.rollouts: {settings.rollouts} is no multiple of batch_trajectories "
                f"{settings.batch_trajectories}; use one"
            )
        return self

    @model_validator(mode="after")
    def _openrlhf(self) -> Self:
        if self.openrlhf is None or self.cluster is None or self.job is None:
            return self
        check_openrlhf(self.openrlhf, self.cluster, self.job, self.device, self.sampler)
        return self

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
