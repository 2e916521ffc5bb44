"""Schema of what a scale states for OpenRLHF: its training engine, the layout of processes, jobs, logging."""

from typing import Literal, Self

from pydantic import Field, model_validator

from sao.config_rows import Block, count, key, optional, share


class OpenRLHF(Block):
    """How OpenRLHF trains and samples; what a row means is decided by the row alone."""

    parameter_type: Literal["bf16", "float32"] = key(
        "type of weights and activations in the trainers; float32 without CUDA only"
    )
    zero_stage: Literal[2, 3] = key("DeepSpeed ZeRO stage: 2 shards gradients and optimizer, 3 weights too")
    attention: Literal["flash_attention_2", "flash_attention_3", "sdpa", "eager"] = key(
        "attention implementation of the trainers"
    )
    experts: Literal["eager", "batched_mm", "grouped_mm"] = key("expert implementation of the trainers")
    gradient_checkpointing: bool = key("recompute activations in the backward pass")
    offload_optimizer: bool = key("keep the optimizer's state in the nodes' memory")
    packing: bool = key("lay trajectories behind each other without padding")
    ring_attention: int = count("GPUs that share one sequence (ring attention); 1 is off")
    micro_batch_trajectories: int = count("trajectories per forward where batches are not sized by tokens")
    max_tokens_per_gpu: int | None = key(
        "tokens per forward and GPU, by which micro-batches are sized; null: micro_batch_trajectories", ge=1
    )
    router_loss_coefficient: float = key(
        "weight of the policy's load-balancing loss; 0: it is not computed", ge=0
    )
    queue_limit_batches: int = count("finished batches that may wait before the sampler starts no new prompt")
    prefix_caching: bool = key("keep the KV cache of a trajectory between its turns; none finds another's")
    cuda_graphs: bool = key("decode with captured CUDA graphs")
    sync_backend: Literal["nccl", "gloo"] = key("how weights travel from the policy's trainer to the engines")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.ring_attention > 1 and not self.packing:
            raise ValueError(
                f"packing: false, and ring_attention {self.ring_attention} shares packed sequences; set true"
            )
        if self.max_tokens_per_gpu is not None and not self.packing:
            raise ValueError("packing: false, and max_tokens_per_gpu sizes packed batches; set true, or null")
        if self.ring_attention > 1 and not self.attention.startswith("flash_attention"):
            raise ValueError(
                f"attention: {self.attention} has no ring form; set flash_attention_2, or ring_attention: 1"
            )
        return self


class Group(Block):
    """Processes of a trainer; each has one GPU with CUDA."""

    nodes: int = count("nodes")
    processes_per_node: int = count("processes on each of them, one GPU each")

    @property
    def processes(self) -> int:
        """Processes of the group."""
        return self.nodes * self.processes_per_node


class Engines(Block):
    """vLLM engines that sample."""

    number: int = count("engines")
    tensor_parallel: int = count("GPUs of each engine")
    memory_share: float = key("share of a GPU's memory that an engine takes", gt=0, le=1)

    @property
    def processes(self) -> int:
        """GPUs of all engines."""
        return self.number * self.tensor_parallel


class Cluster(Block):
    """Which processes run where."""

    actor: Group
    critic: Group
    engines: Engines
    one_node: bool = key("all processes share the GPUs (or cores) of one node, not one GPU each")

    @property
    def processes(self) -> int:
        """Processes of a run with a critic."""
        return self.actor.processes + self.critic.processes + self.engines.processes


class Job(Block):
    """What a run's job asks a cluster for, and what a node has. No part of the digest."""

    hours: int = count("longest time of a job; the next one continues a run that needs more")
    gpus_per_node: int = count("GPUs of a node", minimum=0)
    gpu_memory_gb: float = key("memory of a GPU (GB)", ge=0)
    cores_per_node: int = count("CPU cores that a job takes of a node")
    memory_gb_per_node: int = count("memory that a job takes of a node (GB)")
    minutes_per_update: float | None = optional(
        "measured minutes of an update, in place of the estimate", gt=0
    )
    engine_tokens_per_second: float | None = optional(
        "measured tokens per second and GPU of an engine under full load, for the evaluations' cost", gt=0
    )
    tokens_per_trajectory: int | None = optional(
        "mean tokens of a trajectory, for the plan's estimates", ge=1
    )


class Logging(Block):
    """Where a run also logs; its own run directory is always written. No part of the digest."""

    tensorboard: bool = key("write TensorBoard events into the run directory", default=False)
    wandb: str | None = Field(
        default=None, description="Weights & Biases project; the key is read from WANDB_API_KEY"
    )


class FineTuning(Block):
    """Supervised fine-tuning of a released model on a stronger one's traces, before any reinforcement."""

    data: str = key("set of experiments/data.yaml whose problems are solved for the traces", min_length=1)
    teacher: str = key("model that writes the traces, as its endpoint names it", min_length=1)
    teacher_server: tuple[str, ...] | None = optional("further words of vLLM's command line that serves it")
    samples_per_problem: int = count("traces per problem; those with a wrong answer are left out")
    epochs: int = count("passes over the traces")
    batch_trajectories: int = count("traces per step")
    learning_rate: float = key("peak learning rate", gt=0)
    warm_up_share: float = share("share of the steps over which the learning rate rises")
