"""What a row means for the policy: its objective's settings to the losses of `sao.objectives`."""

from __future__ import annotations

from torch import Tensor

from sao import objectives
from sao.config import RunConfig
from sao.config_rows import DIS, GSPO, TIS, IcePop, PPOClip
from sao.objectives import Normalizer, Stats


def needs_old_logprobs(run: RunConfig) -> bool:
    """Whether the loss reads the trainer's log-probs from before the batch's first update.

    With one policy update per batch these are the update's own, so that no further forward is needed.
    """
    if run.minibatches_per_batch == 1:
        return False
    settings = run.objective
    if isinstance(settings, PPOClip):
        return settings.reference == "trainer"
    return isinstance(settings, IcePop | TIS)


def policy_loss(
    run: RunConfig,
    logprobs: Tensor,
    old_logprobs: Tensor | None,
    rollout_logprobs: Tensor,
    estimates: Tensor,
    action_mask: Tensor,
    outcome: Tensor,
    normalizer: Normalizer = None,
) -> tuple[Tensor, Stats]:
    """The row's loss, a sum over action tokens divided by `normalizer`, and its token counts.

    Tensors are [batch, tokens] but for `outcome` [batch], the trajectories' rewards. old_logprobs: the
    trainer's from before the batch's first update; None where they are those given. normalizer and counts: as
    in `sao.objectives`.
    """
    settings, mask, rollout = run.objective, action_mask, rollout_logprobs
    old = logprobs.detach() if old_logprobs is None else old_logprobs
    match settings:
        case DIS():
            band = settings.eps_low, settings.eps_high
            loss, stats = objectives.dis_loss(logprobs, rollout, estimates, mask, *band, normalizer)
        case PPOClip():
            reference = rollout if settings.reference == "rollout" else old
            clip = settings.clip_low, settings.clip_high
            loss, stats = objectives.ppo_clip_loss(logprobs, reference, estimates, mask, *clip, normalizer)
        case GSPO():
            clip = settings.clip_low, settings.clip_high
            loss, stats = objectives.gspo_loss(logprobs, rollout, estimates, mask, *clip, normalizer)
        case IcePop():
            limits = settings.band_low, settings.band_high, settings.clip_low, settings.clip_high
            loss, stats = objectives.icepop_loss(logprobs, old, rollout, estimates, mask, *limits, normalizer)
        case TIS():
            cap_and_clip = settings.cap, settings.clip_low, settings.clip_high
            loss, stats = objectives.tis_loss(
                logprobs, old, rollout, estimates, mask, *cap_and_clip, normalizer
            )
    if settings.positive_example_coefficient:
        imitation = objectives.positive_example_loss(logprobs, mask, outcome > 0, normalizer)
        loss = loss + settings.positive_example_coefficient * imitation
    return loss, stats
