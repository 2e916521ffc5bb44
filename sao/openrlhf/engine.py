"""A vLLM engine that records which weights sampled each token and with what log-probability.

`RolloutEngine` takes the place of OpenRLHF's RolloutRayActor. Weights change in the middle of trajectories:
the engine is paused at a token boundary, receives the tensors, and goes on. OpenRLHF's own pause makes vLLM
drop the KV cache of every request under way and build it anew with the new weights; that is what the setting
`recompute_kv` does here, and without it they keep it. With prefix caching every trajectory has a cache of its
own (vLLM's cache salt): its later turns find its earlier ones, and a new trajectory never finds what other
weights computed. vLLM caches whole blocks, so the last, unfilled one is computed again at every turn; without
prefix caching all of them are.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sao.openrlhf.ready  # noqa: F401

# isort: split
from openrlhf.trainer.ray import vllm_engine
from vllm import SamplingParams
from vllm.inputs import TokensPrompt
from vllm.sampling_params import RequestOutputKind
from vllm.utils import random_uuid
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.engine.exceptions import EngineDeadError

from sao.config import RunConfig
from sao.openrlhf import cpu

DEAD = "the vLLM engine is dead; its own log says why"
WORKER = "sao.openrlhf.worker.WeightReceiver"
LOGPROBS_MODES = ("processed_logprobs", "raw_logprobs")  # both are the full softmax at temperature 1
# What a sampled token's log-probability must be that of: the full softmax, nothing cut, nothing penalised.
FULL_SOFTMAX: dict[str, Any] = {
    "n": 1,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logits_processors": None,
    "logit_bias": None,
    "allowed_token_ids": None,
    "bad_words": None,
    "structured_outputs": None,
    "min_tokens": 0,
    "stop": [],
    "logprobs": 0,  # of the sampled token
}


class SamplingError(ValueError):
    """Sampling settings under which recorded log-probabilities would not be those of the policy."""


class LogprobError(RuntimeError):
    """The engine sampled a token without saying with what probability."""


class EngineDied(RuntimeError):
    """The engine is gone; nothing that it had not finished can be had."""


def sampling_parameters(temperature: float = 1.0) -> SamplingParams:
    """The settings of a whole trajectory; an action ends where the environment says, not at a token."""
    return SamplingParams(
        temperature=temperature,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        logprobs=0,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def check_sampling(parameters: SamplingParams, temperature: float = 1.0) -> None:
    """Raises SamplingError unless tokens are drawn from the full softmax and their log-probs returned.

    `temperature` is 1 in training and may differ in evaluation alone.
    """
    for name, required in (FULL_SOFTMAX | {"temperature": temperature}).items():
        found = getattr(parameters, name, required)
        if found != required and not (found in (None, [], ()) and required in (None, [], ())):
            raise SamplingError(
                f"sampling setting {name} is {found}, and must be {required}: the recorded log-probabilities "
                "would not be those of the policy's full softmax"
            )


@dataclass
class Action:
    """Tokens of one action with their log-probabilities and the version of the weights that sampled each."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def append(self, token: int, logprobs: Any, version: int) -> None:
        """Add a token; raises LogprobError unless `logprobs` (token to Logprob) has a finite one of it."""
        entry = logprobs.get(token) if logprobs else None
        if entry is None or entry.logprob is None or not math.isfinite(entry.logprob):
            found = "none" if entry is None else entry.logprob
            raise LogprobError(
                f"the engine returned log-probability {found} for sampled token {token}, number "
                f"{len(self.token_ids)} of its action; the trajectory cannot be trained on"
            )
        self.token_ids.append(token)
        self.logprobs.append(entry.logprob)
        self.versions.append(version)


class Outputs:
    """Knows when all that vLLM's engine process has returned lies with the requests that it belongs to.

    vLLM hands over one step's outputs after the other: when it asks for the next, it is done with the last.
    """

    def __init__(self, core: Any) -> None:
        self._queue, self._take = core.outputs_queue, core.get_output_async
        self._asked_for_more = False
        core.get_output_async = self._next
        # vLLM may be waiting for outputs already, not through `_next`: empty ones end that wait.
        self._queue.put_nowait(EngineCoreOutputs())

    async def _next(self) -> Any:
        self._asked_for_more = True
        outputs = await self._take()
        self._asked_for_more = False
        return outputs

    def handed_over(self) -> bool:
        """Whether every output that has arrived lies with its request."""
        return self._asked_for_more and self._queue.empty()


_OpenRLHFEngine: Any = vllm_engine.RolloutRayActor.__ray_metadata__.modified_class


class RolloutEngine(_OpenRLHFEngine):
    """See the module's text. `version` is the number of policy updates behind the weights it holds."""

    async def __init__(self, *arguments: Any, **settings: Any) -> None:  # type: ignore[misc]
        mode = settings.setdefault("logprobs_mode", LOGPROBS_MODES[0])
        if mode not in LOGPROBS_MODES:
            raise SamplingError(f"logprobs_mode {mode} returns no log-probabilities; use {LOGPROBS_MODES[0]}")
        settings |= {
            "worker_extension_cls": WORKER,
            "skip_tokenizer_init": True,  # tokens in, tokens out
            "max_logprobs": 1,
        }
        if not cpu.is_needed():
            settings["moe_backend"] = "triton"  # others swap or shuffle what a weight sync then overwrites
        self.version = 0
        self.recompute_kv = False
        self._queues: set[Any] = set()
        self._adding = 0
        self._weights_arrived = self._paused = False
        await super().__init__(*arguments, **settings)
        self._outputs = Outputs(self.llm.engine_core)

    async def configure(self, run: RunConfig, results: str = "results") -> None:
        """Set what the run says about sampling, and open its environment."""
        self.recompute_kv = run.sampling.recompute_kv
        check_sampling(sampling_parameters(run.sampling.temperature))
        self.executor.configure(run, results)

    async def sample_action(
        self,
        token_ids: Sequence[int],
        parameters: SamplingParams,
        trajectory_key: str,
        complete: Callable[[list[int]], bool],
    ) -> Action:
        """Samples after `token_ids` until `complete` calls the action whole, or `parameters.max_tokens`.

        `trajectory_key` is the same for all actions of a trajectory and belongs to no other. Raises
        LogprobError, and EngineDied when the engine is gone.
        """
        prompt = TokensPrompt(prompt_token_ids=list(token_ids), cache_salt=trajectory_key)
        action, finished, whole = Action(), False, False
        queue = await self._add_request(prompt, parameters)
        try:
            while not finished and not whole:
                output = queue.get_nowait() or await queue.get()
                version, finished, sampled = self.version, output.finished, output.outputs[0]
                logprobs = sampled.logprobs or [None] * len(sampled.token_ids)
                for token, entry in zip(sampled.token_ids, logprobs, strict=True):
                    action.append(token, entry, version)
                    if whole := complete(action.token_ids):
                        break  # an engine that runs ahead may have sampled tokens after the action's end
        except EngineDeadError:
            raise EngineDied("the vLLM engine died while it sampled; its own log says why") from None
        finally:
            self._queues.discard(queue)
            if not finished and not self.llm.errored:
                await self.llm.abort(queue.request_id, internal=True)
            queue.close()
        return action

    async def _add_request(self, prompt: TokensPrompt, parameters: SamplingParams) -> Any:
        self._adding += 1
        try:
            queue = await self.llm.add_request(random_uuid(), prompt, parameters)
        except EngineDeadError:
            raise EngineDied(DEAD) from None
        finally:
            self._adding -= 1
        self._queues.add(queue)
        return queue

    async def pause_generation(self) -> None:
        """Stops all requests at a token boundary; returns when every token sampled so far is recorded.

        vLLM's answer says that no step is under way, and it comes behind the outputs of the last one.
        """
        try:
            await self.llm.pause_generation(mode="keep", clear_cache=self.recompute_kv)
        except EngineDeadError:
            raise EngineDied(DEAD) from None
        self._paused = True
        while not self._all_recorded():
            if self.llm.errored:
                raise EngineDied(DEAD)
            await asyncio.sleep(0)

    def _all_recorded(self) -> bool:
        """Whether every token that arrived is in its action; a request being added may have some already."""
        taken = all(queue.output is None for queue in self._queues)
        return taken and not self._adding and self._outputs.handed_over()

    async def update_weight(self, name: str, dtype: Any, shape: Any, empty_cache: bool = False) -> None:
        """Receives one tensor from the trainer."""
        if not self._paused:
            raise RuntimeError(f"{name} arrived while the engine was sampling: call pause_generation first")
        self._weights_arrived = True
        await super().update_weight(name, dtype, shape, empty_cache)

    async def finish_weight_update(self, version: int) -> None:
        """All tensors are there: tokens sampled from now on record `version`."""
        self.version = version
        self._weights_arrived = False

    async def resume_generation(self) -> None:
        """Lets all requests go on."""
        if self._weights_arrived:
            raise RuntimeError("weights arrived without a version: call finish_weight_update before resuming")
        self._paused = False
        await self.llm.resume_generation()

    async def reset_prefix_cache(self) -> None:
        """Does nothing: no trajectory finds another's cache, and those under way keep theirs."""

    async def weight_hashes(self) -> dict[str, str]:
        """Fingerprint of every tensor, as `sao.openrlhf.weights.weight_hashes` makes the trainer's."""
        hashes = await self.llm.collective_rpc("weight_hashes")
        return hashes[0]

    async def check_health(self) -> None:
        """Raises EngineDied when the engine is gone."""
        try:
            await self.llm.check_health()
        except EngineDeadError:
            raise EngineDied(DEAD) from None
