"""Streaming rollouts: what the trainer asks for, and what one finished trajectory carries to it.

The trainer holds one handle, the Ray actor `RolloutStream` (it replaces OpenRLHF's GenerateSamplesActor), and
speaks to it in this order:

    stream.start.remote(version)             the engines hold the weights of `version`: begin to sample
    taken = ray.get(stream.take.remote())    waits for a whole batch; the trainer counts as busy from here
    ...                                      experience, critic, policy
    stream.finish_update.remote(version, loaded)
                                             after the engines got the weights of `version` (`loaded`), or did
                                             not: critic-only steps and steps between two syncs

`taken` is a `sao.wall_clock_stream.StreamedBatch`. It carries

    trajectories     list of `sao.trajectory.Trajectory`, in the order of training: groups shuffled, the
                     members of a group contiguous. Token ids, action spans, rollout log-probs (NaN off the
                     actions), the policy version of every action token, prompt_id, group_id, index, reward,
                     status and label are its fields, as the local engine fills them. Nothing is re-scored.
    rollouts         aligned with `trajectories`: slot, and start_tick, end_tick and graded_tick
    tick             when it was taken; a tick is a millisecond of this run, earlier attempts included
    counters         `sao.streaming.Counters` since the batch before, in the same ticks
    prompts_started  prompts begun so far
    state            the stream's state right after this batch left it. Saved in the checkpoint that follows
                     the batch's update and given to `load_state_dict` before `start`, it makes a resumed run
                     go on: rollouts under way at that moment are sampled again, those trained on are not.

`sao.streaming.schedule_lines(taken, step, update_ticks)` makes its lines of the schedule log.

The engines (`sao.openrlhf.engine.RolloutEngine`, which replaces OpenRLHF's RolloutRayActor) are synchronised
by the trainer in this order, on every engine:

    pause_generation()              running trajectories stop at a token boundary and keep their KV cache
    update_weight(...)              OpenRLHF's call, once per tensor
    finish_weight_update(version)   tokens sampled from here on record `version`
    resume_generation()             refuses when weights arrived and no version was stated

`weight_hashes()` returns the SHA-256 of every tensor of the engine under its transformers name, comparable
with `sao.openrlhf.weights.weight_hashes(named_tensors, dtype)` of the trainer's, by `weights.check_equal`.
"""

import asyncio
from typing import Any

import ray

from sao.config import RunConfig
from sao.environments import make_environment
from sao.environments.base import Environment, Instance
from sao.openrlhf.engine import sampling_parameters
from sao.openrlhf.environment import Answer, Ask
from sao.step_log import HeldOut
from sao.wall_clock_stream import Request, Stream, StreamedBatch

EVALUATION_ATTEMPTS = 3  # of a held-out problem whose environment breaks


class RolloutError(RuntimeError):
    """Sampling cannot go on; the message says why and what to do."""


class RolloutStream:
    """See the module's text; `strategy.args` holds the run's `RunConfig` (`sao`) and its `run_settings`."""

    def __init__(self, pretrain: str, strategy: Any, vllm_engines: list[Any], **unused: Any) -> None:
        self.run: RunConfig = strategy.args.sao
        self.results: str = strategy.args.run_settings.results
        self.environment: Environment = make_environment(self.run.task, self.run.model, self.results)
        self.engines = vllm_engines
        self.stream = Stream(self.run, self.environment.instances("train"))
        self._load = dict.fromkeys(range(len(vllm_engines)), 0)
        self._changed: asyncio.Event = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._error: BaseException | None = None

    async def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Goes on from the state of a checkpoint; before `start`."""
        self.stream.load_state_dict(saved)

    async def start(self, version: int) -> None:
        """Opens the engines' environments and begins to sample with the weights of `version`."""
        await asyncio.gather(*(engine.configure.remote(self.run, self.results) for engine in self.engines))
        self.stream.begin(version)
        self._fill()

    async def take(self) -> StreamedBatch:
        """The batch that is ready first; raises RolloutError where sampling cannot go on."""
        while True:
            if self._error is not None:
                raise self._error
            if self.stream.batch_ready():
                taken = self.stream.take()
                self._fill()
                return taken
            self._fill()  # what was too old is gone: its slots start again
            self._changed.clear()
            await self._changed.wait()

    async def finish_update(self, version: int, loaded: bool = True) -> int:
        """The trainer is free again after `version` policy updates; `loaded` if the engines have them.

        Returns the tick.
        """
        tick = self.stream.finish_update(version, loaded)
        self._fill()
        return tick

    async def evaluate(self, progress: float) -> list[HeldOut]:
        """One sample of every held-out problem, `runs_per_problem` times over, beside the training rollouts.

        The engines must hold the weights to be evaluated and not be given others meanwhile.
        """
        problems = self.environment.instances("held_out") * self.run.evaluation.runs_per_problem
        free = asyncio.Semaphore(self.run.sampler.slots)

        async def sample(index: int, instance: Instance) -> HeldOut:
            async with free:
                for attempt in range(EVALUATION_ATTEMPTS):
                    key = f"held out {self.stream.version} {progress} {index} {attempt}"
                    ask = Ask(instance, index, -1, progress, key)
                    answer = await self._ask(ask, self.run.evaluation.temperature)
                    if answer.trajectory is not None:
                        return HeldOut(instance, answer.trajectory, answer.details)
                return HeldOut(instance, None, {})

        return await asyncio.gather(*(sample(index, problem) for index, problem in enumerate(problems)))

    def _fill(self) -> None:
        if self._error is not None:
            return
        for request in self.stream.start_requests():
            task = asyncio.get_running_loop().create_task(self._sample(request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _sample(self, request: Request) -> None:
        key = f"trajectory {request.index}"
        ask = Ask(request.instance, request.index, request.group_id, request.progress, key)
        try:
            answer = await self._ask(ask, self.run.sampling.temperature)
            if answer.trajectory is None:
                self.stream.fail(request, answer.failure)
            else:
                self.stream.finish(request, answer.trajectory, answer.sampling_ms)
            self._fill()
        except Exception as error:  # nothing may end this task unseen: `take` passes it on
            self._error = self._error or error
        self._changed.set()

    async def _ask(self, ask: Ask, temperature: float) -> Answer:
        number = min(self._load, key=self._load.__getitem__)
        self._load[number] += 1
        try:
            [answer] = await self.engines[number].generate_responses.remote(
                prompt=ask,
                label=temperature,
                sampling_params=sampling_parameters(temperature),
                max_length=self.run.sampler.max_tokens,
                hf_tokenizer=None,
            )
        except ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            raise RolloutError(f"engine {number}: {cause}; {RESUME}") from None
        except ray.exceptions.RayError as error:
            raise RolloutError(f"engine {number} is gone: {str(error).splitlines()[0]}; {RESUME}") from None
        finally:
            self._load[number] -= 1
        return answer


RESUME = "start the run again, and it goes on from its latest checkpoint"
