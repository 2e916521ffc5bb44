"""Streaming rollouts: what the trainer asks for, and what one finished trajectory carries to it.

The trainer holds one handle, the Ray actor `RolloutStream`, and speaks to it in this order:

    stream.start.remote(version)             the engines hold the weights of `version`: begin to sample
    taken = ray.get(stream.take.remote())    waits for a whole batch; the trainer counts as busy from here
    ...                                      experience, critic, policy
    stream.finish_update.remote(version)     after the engines were synchronised (or not: critic-only steps
                                             and steps between two syncs leave them alone)

`taken` is a `sao.openrlhf.stream.Taken`. It carries

    trajectories     list of `sao.trajectory.Trajectory`, in the order of training: groups shuffled, the members
                     of a group contiguous. Token ids, action spans, rollout log-probs (NaN off the actions),
                     the policy version of every action token, prompt_id, group_id, index, reward, status and
                     label are its fields, as the local engine fills them. Nothing is re-scored, nothing is cut.
    rollouts         per trajectory, aligned with `trajectories`: slot, and start, end and graded time
    counters         what happened since the batch before: invalid, dropped_stale (with length and reward of
                     each), filtered_groups, sampled_tokens, loads, busy slot time, trainer time
    time             when it was taken; all times are whole milliseconds of this run, earlier attempts included
    prompts_started  prompts begun so far
    state            the stream's state right after this batch left it. Saved in the checkpoint that follows the
                     batch's update and handed to `load_state_dict` before `start`, it makes a resumed run go on:
                     prompts in flight or waiting at that moment are sampled again, those trained on are not.

The engines (`sao.openrlhf.engine.RolloutEngine`, which replaces OpenRLHF's RolloutRayActor) are synchronised by
the trainer in this order, on every engine:

    pause_generation()              running trajectories stop at a token boundary and keep their KV cache
    update_weight(...)              OpenRLHF's call, once per tensor
    finish_weight_update(version)   tokens sampled from here on record `version`
    resume_generation()             refuses when weights arrived and no version was stated

`weight_hashes()` returns the SHA-256 of every tensor of the engine under its transformers name, comparable with
`sao.openrlhf.weights.weight_hashes(named_tensors, dtype)` of the trainer's.
"""
