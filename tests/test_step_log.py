"""Lines of metrics.jsonl, and of evaluations.jsonl from attempts at held-out problems."""

from types import SimpleNamespace

import numpy as np
import pytest
from local_engine import run_config, trajectory

from sao.environments.base import Instance
from sao.runlog import EVALUATION_COLUMNS, METRIC_COLUMNS
from sao.runlog_schema import checked_record
from sao.step_log import HeldOut, evaluation_lines, metrics_line
from sao.streaming import GROUP_GIVEN_UP, TOO_OLD, Counters, Taken
from sao.trajectory import Status, Trajectory


def test_a_steps_line_by_hand() -> None:
    """Three trajectories of 1, 2 and 3 action tokens in 1, 1 and 2 actions; 10 slots over 40 ticks."""
    made = [
        trajectory([1, 2], [(1, 2)], reward=1.0),
        trajectory([1, 2, 3, 4], [(1, 3)], reward=-0.5, status="truncated"),
        trajectory([1, 2, 3, 4, 5, 6], [(1, 3), (5, 6)], reward=0.0, status="truncated"),
    ]
    made[1].policy_versions[1:3] = [2, 4]
    made[2].policy_versions[[1, 2, 5]] = 4
    dropped = [(TOO_OLD, 9, 0.0), (GROUP_GIVEN_UP, 9, 1.0), (TOO_OLD, 8, 1.0)]
    counters = Counters(40, 300, 10, invalid=4, dropped=dropped, filtered_groups=2, sampled_tokens=60)
    rollouts = [SimpleNamespace(graded_tick=tick) for tick in (90, 80, 100)]
    taken = Taken(made, rollouts, 100, counters, prompts_started=9)  # type: ignore[arg-type]
    run = run_config("sao", training={"batch_trajectories": 3}, sampler={"slots": 10})
    totals = {"wall_seconds": 7.0, "cpu_seconds": 8.0, "sampler_tokens": 500}
    line = metrics_line(run, {"policy_loss": 0.25}, taken, step=4, version=4, seconds=1.5, totals=totals)
    checked_record(METRIC_COLUMNS, line)
    expected = totals | {
        "step": 4,
        "version": 4,
        "policy_loss": 0.25,
        "value_loss": None,
        "virtual_ticks": 100,
        "reward_mean": 0.5 / 3,
        "positive_share": 1 / 3,
        "truncated": 2,
        "trajectories": 3,
        "action_tokens": 6,
        "total_tokens": 12,
        "mean_action_tokens": 2,
        "mean_turns": 4 / 3,
        "dropped_stale": 2,
        "dropped_with_group": 1,
        "invalid": 4,
        "filtered_groups": 2,
        "prompts_seen": 3 * (run.critic_only_steps + 5),
        "queue_wait_mean_ticks": 10,
        "sampler_idle_share": 0.25,
        "trainer_idle_share": 0.75,
        "tokens_per_second": 40,
        "staleness_mean": 1,
        "staleness_max": 4,
    }
    assert {name: line[name] for name in expected} == pytest.approx(expected)


def test_an_attempt_that_broke_each_time_is_an_environment_error() -> None:
    problem = Instance("p", "hard", ())
    solved = Trajectory(
        token_ids=np.array([5, 6, 7, 8, 9]),
        action_spans=np.array([[1, 3], [4, 5]]),
        rollout_logprobs=np.array([np.nan, -1, -1, np.nan, -1], dtype=np.float32),
        policy_versions=np.array([-1, 0, 0, -1, 0]),
        reward=1.0,
        status=Status.COMPLETED,
    )
    attempts = [HeldOut(problem, None), HeldOut(problem, solved, {"style": "cute"})]
    broken, right = evaluation_lines((attempt.sample for attempt in attempts), "toy", 3)
    shared = {"step": 3, "benchmark": "toy", "problem_id": "p", "label": "hard"}
    assert broken == shared | {
        "run_index": 0,
        "correct": False,
        "status": "environment_error",
        "turns": 0,
        "action_tokens": 0,
        "style": None,
        "reward": 0.0,
    }
    assert right == shared | {
        "run_index": 1,
        "correct": True,
        "status": "completed",
        "turns": 2,
        "action_tokens": 3,
        "style": "cute",
        "reward": 1.0,
    }
    for line in (broken, right):
        checked_record(EVALUATION_COLUMNS, line)
