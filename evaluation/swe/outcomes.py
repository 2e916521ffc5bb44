"""Names of what can become of a task; they are in results, so they stay. Imports nothing."""

RESOLVED = "resolved"
SUSPECT = "suspect"  # the tests pass, and patch or log give reason to doubt them
TESTS_FAIL = "tests_fail"
EMPTY_PATCH = "empty_patch"
DOES_NOT_APPLY = "does_not_apply"
TIMEOUT = "timeout"  # of the tests
INFRASTRUCTURE_ERROR = "infrastructure_error"  # says nothing of the patch: no score while there is one

OUTCOMES = (RESOLVED, SUSPECT, TESTS_FAIL, EMPTY_PATCH, DOES_NOT_APPLY, TIMEOUT, INFRASTRUCTURE_ERROR)

UNGRADED = "ungraded"  # verdict of a sample before its patch is graded

MANY_EMPTY_PATCHES = 0.1  # a larger share of them is rather a fault of the run than of the model
