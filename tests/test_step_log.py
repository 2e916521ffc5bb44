"""Lines of evaluations.jsonl from attempts at held-out problems."""

import numpy as np

from sao.environments.base import Instance
from sao.runlog import EVALUATION_COLUMNS
from sao.runlog_schema import checked_record
from sao.step_log import HeldOut, evaluation_lines
from sao.trajectory import Status, Trajectory


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
