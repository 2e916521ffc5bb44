"""SWE-Bench: tasks, the agent's conversation over OpenHands, patches, grading by the official harness."""
