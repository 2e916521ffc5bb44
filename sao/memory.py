"""Memory per GPU of a run over OpenRLHF, by part; docs/planning.md has the formulas. Imports no torch.

Sizes are bytes; a GB is 10^9 bytes.
"""

from dataclasses import dataclass

from sao.config import RunConfig
from sao.config_scales import Model

BYTES = {"bf16": 2, "float32": 4}
OPTIMIZER_BYTES = 12  # a parameter's float32 master weight and AdamW's two moments
LOGITS_CHUNK = 2**26 * 4  # what sao.logprobs holds of the logits at once


@dataclass(frozen=True)
class Parameters:
    """Parameters of a Qwen3-MoE by part; `active` are those that one token passes through."""

    attention: int
    experts: int
    other: int  # norms and routers
    embedding: int
    head: int
    active: int

    @property
    def total(self) -> int:
        return self.attention + self.experts + self.other + self.embedding + self.head


def count_parameters(model: Model, vocabulary_size: int) -> Parameters:
    """Parameters of a model with `vocabulary_size` tokens; embedding and output head are not tied."""
    hidden, head = model.hidden_size, model.head_dimension
    query, key = model.attention_heads * head, model.key_value_heads * head
    attention = model.layers * (2 * hidden * query + 2 * hidden * key + 2 * head)
    expert = 3 * hidden * model.expert_intermediate_size
    other = model.layers * (2 * hidden + hidden * model.experts) + hidden
    active_experts = model.layers * model.experts_per_token * expert
    embedding = vocabulary_size * hidden
    return Parameters(
        attention=attention,
        experts=model.layers * model.experts * expert,
        other=other,
        embedding=embedding,
        head=embedding,
        active=attention + active_experts + other + 2 * embedding,
    )


@dataclass(frozen=True)
class Trainer:
    """Memory of one GPU of the policy's or the critic's trainer, by part.

    `gathered` are the weights of two layers that ZeRO-3 holds whole at a time; `logits` is what a forward
    over all tokens would have held and sao.logprobs does not; the same holds for `router_loss`.
    """

    weights: float
    gradients: float
    optimizer: float
    gathered: float
    activations: float
    logits_chunk: float
    logits_avoided: float
    router_loss_avoided: float

    @property
    def total(self) -> float:
        return (
            self.weights
            + self.gradients
            + self.optimizer
            + self.gathered
            + self.activations
            + self.logits_chunk
        )


@dataclass(frozen=True)
class Engine:
    """Memory of one GPU of an engine: `weights` and `cache` (what its share leaves for the KV cache).

    `cache_per_token` is one token's over all GPUs of the engine; `full_trajectories` is how many
    trajectories of the greatest length all engines hold at once.
    """

    weights: float
    cache: float
    cache_per_token: float
    full_trajectories: float

    @property
    def total(self) -> float:
        return self.weights + self.cache


def tokens_per_forward(run: RunConfig) -> int:
    """Tokens of one forward on one GPU, at most: ring attention shares a sequence among its GPUs."""
    assert run.openrlhf is not None
    if run.openrlhf.max_tokens_per_gpu is not None:
        return run.openrlhf.max_tokens_per_gpu
    trajectories = run.openrlhf.micro_batch_trajectories
    return -(-run.sampler.max_tokens * trajectories // run.openrlhf.ring_attention)


def policy_trainer(run: RunConfig, vocabulary_size: int) -> Trainer:
    """Of one GPU of the policy's trainer."""
    assert run.cluster is not None
    parameters = count_parameters(run.model, vocabulary_size)
    return _trainer(
        run, parameters, parameters.total, run.cluster.actor.processes, vocabulary_size, head=True
    )


def critic_trainer(run: RunConfig, vocabulary_size: int) -> Trainer:
    """Of one GPU of the critic's trainer: a head of one output, and no gradients of what is frozen."""
    assert run.cluster is not None and run.critic is not None
    parameters = count_parameters(run.model, vocabulary_size)
    frozen = {
        "none": 0,
        "attention": parameters.attention,
        "all_but_experts_and_head": parameters.attention + parameters.other + parameters.embedding,
    }[run.critic.frozen]
    trained = parameters.total - parameters.head - frozen
    return _trainer(run, parameters, trained, run.cluster.critic.processes, vocabulary_size, head=False)


def _trainer(
    run: RunConfig, parameters: Parameters, trained: int, processes: int, vocabulary_size: int, head: bool
) -> Trainer:
    settings, model = run.openrlhf, run.model
    assert settings is not None
    size = BYTES[settings.parameter_type]
    sharded = settings.zero_stage == 3
    whole = parameters.total if head else parameters.total - parameters.head
    tokens = tokens_per_forward(run)
    layer = (parameters.attention + parameters.experts + parameters.other) / model.layers
    return Trainer(
        weights=size * whole / (processes if sharded else 1),
        gradients=size * trained / processes,
        optimizer=0.0 if settings.offload_optimizer else OPTIMIZER_BYTES * trained / processes,
        gathered=2 * size * layer if sharded else 0.0,
        activations=_activations(model, tokens, size, settings.gradient_checkpointing),
        logits_chunk=min(LOGITS_CHUNK, 4.0 * tokens * vocabulary_size) if head else 0.0,
        logits_avoided=4.0 * tokens * vocabulary_size if head else 0.0,
        router_loss_avoided=8.0 * model.layers * tokens * model.experts_per_token * model.experts,
    )


def _activations(model: Model, tokens: int, size: int, checkpointing: bool) -> float:
    """Inputs of all layers and one layer in work; without checkpointing all layers, as the backward needs.

    A layer in work holds, with gradients, its residuals and norms, queries, keys, values and attention's
    output, the router's scores, and the experts' inputs, two projections, their product and the output.
    """
    query = model.attention_heads * model.head_dimension
    key = model.key_value_heads * model.head_dimension
    expert = model.experts_per_token * (2 * model.hidden_size + 3 * model.expert_intermediate_size)
    work = 4 * model.hidden_size + 2 * query + 2 * key + 2 * model.experts + expert
    if checkpointing:
        return size * tokens * (model.layers * model.hidden_size + 2 * work)
    return size * tokens * (model.layers + 1) * work


def engine(run: RunConfig, vocabulary_size: int) -> Engine:
    """Of one GPU of an engine; weights and cache in bf16."""
    assert run.cluster is not None and run.job is not None
    engines, model = run.cluster.engines, run.model
    parameters = count_parameters(model, vocabulary_size)
    weights = 2 * parameters.total / engines.tensor_parallel
    cache = engines.memory_share * run.job.gpu_memory_gb * 1e9 - weights
    per_token = 4.0 * model.layers * model.key_value_heads * model.head_dimension
    of_all_engines = max(cache, 0.0) * engines.processes
    return Engine(weights, cache, per_token, of_all_engines / (per_token * run.sampler.max_tokens))
