"""Sample trajectories of a row: tokens in their turns, with values and advantages in classes of colour."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from analysis.load import Run
from analysis.render import EMPTY
from analysis.trace import Trajectory, dis_band, notes, parts, ratio, read_trajectories

Band = tuple[float, float] | None

MOST_TOKENS, MOST_OF_TRAINING = 600, 2
ADVANTAGE_EDGES = (0.02, 0.1, 0.3, 0.6)
VALUE_EDGES = (0.2, 0.4, 0.6, 0.8)


@dataclass(frozen=True)
class Token:
    """`numbers` in words for hover, focus and screen reader; the classes are empty off actions."""

    text: str
    numbers: str = ""
    advantage_class: str = ""
    value_class: str = ""


@dataclass(frozen=True)
class Part:
    kind: str
    tokens: Sequence[Token]


@dataclass(frozen=True)
class Sample:
    """One trajectory as the page shows it; `left_out` tokens at its end are not shown."""

    title: str
    parts: Sequence[Part]
    rows: Sequence[Sequence[str]]
    left_out: int
    has_values: bool
    has_advantages: bool


@dataclass(frozen=True)
class Samples:
    """What is shown of a row's trajectories: `said` how they were chosen, `notes` how to read the numbers."""

    title: str
    said: str
    shown: Sequence[Sample]
    notes: Sequence[str] = ()


TOKEN_HEADER = ("at", "token", "log-prob (nats)", "ratio", "value", "advantage", "version")


def row_samples(runs: Sequence[Run]) -> list[Samples]:
    """Samples of evaluations and of batches trained on, each of the first run that logged any.

    Raises AnalysisError for a damaged log.
    """
    chosen = [_evaluation_samples(runs), _training_samples(runs)]
    return [samples for samples in chosen if samples is not None]


def _evaluation_samples(runs: Sequence[Run]) -> Samples | None:
    run, lines = _first_log(runs, training=False)
    if run is None:
        return None
    chosen = choose(lines)
    said = (
        f"{len(chosen)} of the {len(lines)} trajectories that `{run.directory}` logged: the first solved and "
        "the first unsolved one of the last evaluation, with their problems at the first. At most "
        f"{MOST_TOKENS} tokens of each are shown."
    )
    band = dis_band(run.record.config)
    shown = [_sample(line, band, f"after {line['step']} updates") for line in chosen]
    return Samples("From evaluations", said, shown, notes(run.record, chosen[0], band))


def _training_samples(runs: Sequence[Run]) -> Samples | None:
    run, lines = _first_log(runs, training=True)
    if run is None:
        return None
    last = max(line["step"] for line in lines)
    chosen = [line for line in lines if line["step"] == last][:MOST_OF_TRAINING]
    said = (
        f"{len(chosen)} of the {len(lines)} trajectories of training that `{run.directory}` logged: the "
        f"first of the last batch logged. At most {MOST_TOKENS} tokens of each are shown."
    )
    band = dis_band(run.record.config)
    shown = [_sample(line, band, f"in update {line['step']}") for line in chosen]
    kept = [note for note in notes(run.record, chosen[0], band, training=True) if "Masked here" not in note]
    return Samples("From a batch trained on", said, shown, kept)


def _first_log(runs: Sequence[Run], training: bool) -> tuple[Run | None, list[Trajectory]]:
    for run in runs:
        if lines := read_trajectories(run.record.path, training):
            return run, lines
    return None, []


def choose(lines: Sequence[Trajectory]) -> list[Trajectory]:
    """A solved and an unsolved trajectory of the last step, each after that problem's of the first step."""
    first, last = min(line["step"] for line in lines), max(line["step"] for line in lines)
    ends = [line for line in lines if line["step"] == last]
    solved = [line for line in ends if line["reward"] > 0][:1]
    unsolved = [line for line in ends if line["reward"] <= 0][:1]
    chosen: list[Trajectory] = []
    for end in solved + unsolved:
        starts = [line for line in lines if line["step"] == first and line["problem_id"] == end["problem_id"]]
        chosen += [*starts[:1], end] if first != last else [end]
    return chosen


def advantage_class(advantage: float | None) -> str:
    """`a-4` to `a4`: sign and size by `ADVANTAGE_EDGES`; empty without an advantage."""
    if advantage is None:
        return ""
    size = sum(abs(advantage) >= edge for edge in ADVANTAGE_EDGES)
    return f"a{size}" if advantage >= 0 or not size else f"a-{size}"


def value_class(value: float | None) -> str:
    """`v0` to `v4` by `VALUE_EDGES`; empty without a value."""
    return "" if value is None else f"v{sum(value >= edge for edge in VALUE_EDGES)}"


def legend() -> dict[str, list[tuple[str, str]]]:
    """Classes with their ranges in words, for advantages and values."""
    pairs = list(pairwise(ADVANTAGE_EDGES))
    up = [*(f"+{low:g} to +{high:g}" for low, high in pairs), f"+{ADVANTAGE_EDGES[-1]:g} or more"]
    down = [*(f"-{high:g} to -{low:g}" for low, high in pairs), f"-{ADVANTAGE_EDGES[-1]:g} or less"]
    values = [f"below {VALUE_EDGES[0]:g}"]
    values += [f"{low:g} to {high:g}" for low, high in pairwise(VALUE_EDGES)]
    values.append(f"{VALUE_EDGES[-1]:g} or more")
    return {
        "advantage": [
            *reversed([(f"a-{place}", said) for place, said in enumerate(down, start=1)]),
            ("a0", f"within {ADVANTAGE_EDGES[0]:g} of 0"),
            *((f"a{place}", said) for place, said in enumerate(up, start=1)),
        ],
        "value": [(f"v{place}", said) for place, said in enumerate(values)],
    }


def _sample(line: Trajectory, band: Band, when: str) -> Sample:
    total = len(line["action_mask"])
    title = (
        f"Problem {line['problem_id'][:8]} ({line['label'] or 'no label'}) {when}: "
        f"{line['status']}, reward {line['reward']:g}, {total} tokens, {sum(line['action_mask'])} of them "
        "actions"
    )
    shown = []
    for kind, positions in parts(line["action_mask"][:MOST_TOKENS]):
        tokens = [
            _token(line, position, band) if kind == "action" else Token(line["token_texts"][position])
            for position in positions
        ]
        shown.append(Part(kind, tokens))
    rows = [
        _numbers(line, position, band)
        for position in range(min(total, MOST_TOKENS))
        if line["action_mask"][position]
    ]
    has = {name: line[name] is not None for name in ("values", "advantages")}
    return Sample(title, shown, rows, max(0, total - MOST_TOKENS), has["values"], has["advantages"])


def _token(line: Trajectory, position: int, band: Band) -> Token:
    numbers = _numbers(line, position, band)
    said = ", ".join(
        f"{name} {number}"
        for name, number in zip(TOKEN_HEADER[2:], numbers[2:], strict=True)
        if number != EMPTY
    )
    advantage, value = _at(line, "advantages", position), _at(line, "values", position)
    return Token(numbers[1], f"{numbers[1]}: {said}", advantage_class(advantage), value_class(value))


def _numbers(line: Trajectory, position: int, band: Band) -> list[str]:
    """The cells of one action token, as in TOKEN_HEADER; ratios outside the band of DIS are marked."""
    kept = ratio(line, position)
    masked = band is not None and kept is not None and not band[0] < kept < band[1]
    return [
        str(position),
        line["token_texts"][position],
        _number(line["rollout_logprobs"][position]),
        _number(kept) + (" masked" if masked else ""),
        _number(_at(line, "values", position)),
        _number(_at(line, "advantages", position), signed=True),
        str(line["policy_versions"][position]),
    ]


def _at(line: Trajectory, name: str, position: int) -> float | None:
    return None if line[name] is None else line[name][position]


def _number(value: float | None, signed: bool = False) -> str:
    if value is None:
        return EMPTY
    return f"{value:{'+' if signed else ''}.3f}"


def token_html(token: Token) -> Markup:
    """A token of an action with its numbers as title, any other as plain text."""
    if not token.numbers:
        return Markup("<span>{}</span>").format(token.text)
    classes = " ".join(name for name in (token.advantage_class, token.value_class) if name)
    return Markup('<b class="{}" title="{}">{}</b>').format(classes, token.numbers, token.text)
