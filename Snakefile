# The workflow: prepare -> train -> tables, figures, claims, report. What it plans is worked out in sao/grid.py.
#
#   snakemake --cores 2                                            the paper's rows, tables, figures, claims and report
#   snakemake --cores 2 beyond                                     the rows that the paper lacks
#   snakemake --cores 2 results/cpu/rows/vapo.md                   one row
#   snakemake --cores 1 figures --config runs=results/logged/cpu   from logged runs; nothing is trained
#   snakemake --cores 2 math --config scale=cpu_math               the mathematics benchmarks, sampled over HTTP
#   snakemake --cores 2 swe --config scale=paper_swe endpoint=URL   SWE-Bench Verified (docs/swe.md)
#   snakemake --cores 1 plan                                       runs left, with their cost
#
#   snakemake --report workflow.html                               Snakemake's own report of what is made
#
# Switches: --config scale=cpu results=results seeds=5 runs=FOLDER beside=FOLDER endpoint=URL model=NAME
# teacher=URL data=FOLDER benchmarks=FOLDER openrlhf_python=FILE; for swe those of docs/swe.md
import os
import signal
import sys
import time
from pathlib import Path

from snakemake.utils import min_version

from evaluation.math.targets import (
    endpoint_options,
    evaluation_environment,
    evaluation_python,
    fetched_sets,
    fetching_options,
    policy_pattern,
    policy_seals,
    teacher_options,
    traces_folder,
    traces_inputs,
    training_inputs,
    untrained_rows,
    values_inputs,
    warm_start_inputs,
    with_evaluations,
)
from evaluation.swe.targets import (
    evaluation_seals as swe_seals,
    grading_options,
    playing_options,
    python_command,
)
from sao.config import load_scale
from sao.grid import GridError, alternatives, open_grid
from sao.jobs import resources

min_version("9.27")

# Rules call the Python that runs Snakemake, also where its environment is not activated.
os.environ.update(
    PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.getenv('PATH', os.defpath)}"
)

try:
    GRID = with_evaluations(open_grid(config))
    GRID.check_targets(sys.argv[1:])
except GridError as error:
    sys.exit(str(error))

for message in GRID.refused.values():
    print(message, file=sys.stderr)

INTERRUPTS = []  # when Ctrl-C stopped the workflow, in seconds


def interrupt(signal_number, frame):
    """Let a second Ctrl-C right after the first not cut short how Snakemake ends; the jobs get both."""
    now = time.monotonic()
    if not INTERRUPTS or now - INTERRUPTS[-1] > 3:
        INTERRUPTS.append(now)
        raise KeyboardInterrupt


# Where the shell had interrupts ignored, as for a background command, they stay so.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, interrupt)

OUT = GRID.root
TABLE_2 = [table for table in GRID.names("table") if table == "table2"]
CLAIMS = expand("{out}/tables/claims.{kind}", out=OUT, kind=["csv", "md", "tex"])
CHECKS = [f"{OUT}/tables/comparisons.csv", f"{OUT}/tables/published.csv"]


def swe_inputs():
    """Seals that Table 2 stands on: all where an endpoint is given that makes them, else those that there are."""
    if not GRID.trains:
        return []  # logged runs have them with their tables
    seals = swe_seals(load_scale(GRID.scale), OUT, GRID.paper_rows(), GRID.seeds)
    return [seal for seal in seals if "endpoint" in config or Path(seal).exists()]


wildcard_constraints:
    row=alternatives(GRID.rows),
    seed=alternatives(GRID.seeds),
    table=alternatives(GRID.names("table")),
    figure=alternatives(GRID.names("figure")),


# On a cluster these are made where Snakemake runs.
localrules:
    all,
    training_data,
    tables,
    figures,
    beyond,
    math,
    grid,
    math_scores,
    swe,
    swe_scores,
    table,
    figure,
    claims,
    claims_beyond,
    comparisons,
    published,
    report,
    row,
    plan,
    refuse,


rule all:
    """The paper's rows of this scale with their tables, figures, claims and report (default)."""
    default_target: True
    input:
        GRID.seals(GRID.paper_rows()),
        expand("{out}/tables/{table}.csv", out=OUT, table=GRID.wanted("table")),
        expand("{out}/figures/{figure}.pdf", out=OUT, figure=GRID.wanted("figure")),
        CLAIMS,
        CHECKS,
        f"{OUT}/report.html",
        GRID.refusal_marker(GRID.paper_rows()),


rule tables:
    """The paper's tables, their comparisons with SAO, the claims, and checks on the published values."""
    input:
        GRID.seals(GRID.paper_rows()),
        expand("{out}/tables/{table}.csv", out=OUT, table=GRID.wanted("table")),
        CLAIMS,
        CHECKS,
        GRID.refusal_marker(GRID.paper_rows()),


rule figures:
    """The paper's figures."""
    input:
        [GRID.artifact_inputs(figure) for figure in GRID.wanted("figure")],
        expand("{out}/figures/{figure}.pdf", out=OUT, figure=GRID.wanted("figure")),
        GRID.refusal_marker(GRID.paper_rows()),


rule beyond:
    """The rows that the paper lacks, their table, and the claims with them."""
    input:
        GRID.seals(["sao", *GRID.beyond_rows()]),
        expand(
            "{out}/tables/{table}.csv",
            out=OUT,
            table=GRID.wanted("table", beyond=True),
        ),
        expand(
            "{out}/figures/{figure}.pdf",
            out=OUT,
            figure=GRID.wanted("figure", beyond=True),
        ),
        f"{OUT}/tables/claims_beyond.csv",
        GRID.refusal_marker(["sao", *GRID.beyond_rows()]),


rule math:
    """The mathematics benchmarks of Table 1's rows, trained or not: their scores, and Table 1."""
    input:
        f"{OUT}/tables/math_scores.csv",
        expand("{out}/tables/{table}.csv", out=OUT, table=GRID.evaluated_tables()),
        GRID.refusal_marker(GRID.evaluated_rows()),


rule swe:
    """SWE-Bench Verified for Table 2's rows, trained or not: their scores and paired tests, and Table 2."""
    input:
        f"{OUT}/tables/swe_scores.csv",
        expand("{out}/tables/{table}.csv", out=OUT, table=TABLE_2),


rule grid:
    """Every run of the scale, without tables."""
    input:
        GRID.seals(GRID.rows),
        GRID.refusal_marker(GRID.rows),


rule training_data:
    """A public set without what a benchmark holds; experiments/data.yaml says where it comes from."""
    output:
        f"{GRID.results}/data/{{set}}.jsonl",
    log:
        f"{OUT}/logs/data/{{set}}.log",
    wildcard_constraints:
        set=alternatives(fetched_sets()),
    conda:
        "environment.yml"
    params:
        options=fetching_options(config),
    shell:
        "python -m evaluation.training_data fetch {wildcards.set} --out {output:q} {params.options} 2>&1 | tee -i {log:q}"


rule teacher_traces:
    """Problems solved by a stronger model with the Python tool. Declares the seal alone: attempts outlive a failure."""
    input:
        lambda wildcards: ancient(traces_inputs(GRID, wildcards.task)),
    output:
        f"{OUT}/prepare/{{task}}/traces/seal.json",
    log:
        f"{OUT}/logs/prepare/{{task}}.traces.log",
    retries: 1
    conda:
        GRID.environment()
    threads: GRID.preparing("traces").cores
    resources:
        **resources(lambda wildcards: GRID.preparing("traces")),
        command=GRID.preparing_command("traces"),
        # No parameter: where the teacher is served is no part of what it says.
        teacher=teacher_options(config),
    params:
        results=lambda wildcards: GRID.results,
        scale=GRID.scale,
    shell:
        "{resources.command} -m evaluation.math.traces sample --results {params.results:q} --scale {params.scale}"
        " {resources.teacher} 2>&1 | tee -i {log:q}"


rule sft_traces:
    """The teacher's right and whole solutions as conversations in the trained model's chat format."""
    input:
        lambda wildcards: ancient(
            f"{traces_folder(load_scale(GRID.scale), GRID.results)}/seal.json"
        ),
    output:
        f"{GRID.results}/data/{{set}}_traces.jsonl",
    log:
        f"{OUT}/logs/data/{{set}}_traces.log",
    wildcard_constraints:
        set="[a-z0-9_]+",
    conda:
        GRID.environment()
    resources:
        command=GRID.preparing_command("traces"),
    params:
        results=lambda wildcards: GRID.results,
        scale=GRID.scale,
    shell:
        "{resources.command} -m evaluation.math.traces keep --results {params.results:q} --scale {params.scale}"
        " 2>&1 | tee -i {log:q}"


rule warm_start:
    """Supervised warm-up of the policy, shared by all rows of a task."""
    input:
        lambda wildcards: ancient(warm_start_inputs(GRID, wildcards.task)),
    output:
        f"{OUT}/prepare/{{task}}/warm_start/seal.json",
    log:
        f"{OUT}/logs/prepare/{{task}}.warm_start.log",
    conda:
        GRID.environment()
    threads: GRID.preparing("warm_start").cores
    resources:
        **resources(lambda wildcards: GRID.preparing("warm_start")),
        command=GRID.preparing_command("warm_start"),
    params:
        digest=lambda wildcards: GRID.preparation_digests[wildcards.task],
        results=lambda wildcards: GRID.results,
        scale=GRID.scale,
    shell:
        "{resources.command} -m sao.prepare warm-start --results {params.results:q} --scale {params.scale} --task {wildcards.task}"
        " 2>&1 | tee -i {log:q}"


rule pretrain_values:
    """Pretraining of the value model, once for each set of frozen parameters."""
    input:
        lambda wildcards: ancient(values_inputs(GRID, wildcards.task, wildcards.frozen)),
    output:
        f"{OUT}/prepare/{{task}}/values_{{frozen}}/seal.json",
    log:
        f"{OUT}/logs/prepare/{{task}}.values_{{frozen}}.log",
    wildcard_constraints:
        frozen="attention|none|all_but_experts_and_head",
    conda:
        GRID.environment()
    threads: GRID.preparing("values").cores
    resources:
        **resources(lambda wildcards: GRID.preparing("values")),
        command=GRID.preparing_command("values"),
    params:
        digest=lambda wildcards: GRID.preparation_digests[wildcards.task],
        results=lambda wildcards: GRID.results,
        scale=GRID.scale,
    shell:
        "{resources.command} -m sao.prepare values --results {params.results:q} --scale {params.scale} --task {wildcards.task}"
        " --frozen {wildcards.frozen} 2>&1 | tee -i {log:q}"


rule train:
    """One run. Declares the seal alone: Snakemake deletes what is declared when a job fails, and never the rest."""
    input:
        lambda wildcards: ancient(training_inputs(GRID, wildcards.row, wildcards.seed)),
    output:
        f"{OUT}/runs/{{row}}/seed{{seed}}/seal.json",
    log:
        f"{OUT}/logs/train/{{row}}.seed{{seed}}.log",
    retries: GRID.retries()
    conda:
        GRID.environment()
    threads: lambda wildcards: GRID.training(wildcards.row).cores
    resources:
        **resources(lambda wildcards: GRID.training(wildcards.row)),
        command=lambda wildcards: GRID.training_command(wildcards.row),
    params:
        digest=lambda wildcards: GRID.run(wildcards.row, wildcards.seed).digest,
        results=lambda wildcards: GRID.results,
        scale=GRID.scale,
    shell:
        "{resources.command} -m sao.train --results {params.results:q} --row {wildcards.row} --scale {params.scale}"
        " --seed {wildcards.seed} 2>&1 | tee -i {log:q}"


rule evaluate_math:
    """One benchmark of one policy. Declares the seal alone, so that samples outlive a failure."""
    input:
        lambda wildcards: (
            ancient(
                policy_seals(
                    load_scale(GRID.scale),
                    OUT,
                    wildcards.policy,
                    wildcards.policy_seed,
                )
            )
            if wildcards.policy in {*GRID.rows, *untrained_rows()}
            else []
        ),
    output:
        f"{OUT}/evaluations/{{policy}}/seed{{policy_seed}}/step{{step}}/{{benchmark}}/seal.json",
    log:
        f"{OUT}/logs/evaluations/{{policy}}.seed{{policy_seed}}.step{{step}}.{{benchmark}}.log",
    wildcard_constraints:
        policy=policy_pattern(GRID.rows, served="endpoint" in config),
        policy_seed=r"\d+",
        step=r"\d+",
        benchmark="(?!swe_)[a-z0-9_]+",
    retries: 1
    conda:
        evaluation_environment(GRID, config)
    threads: GRID.evaluating().cores
    resources:
        **resources(lambda wildcards: GRID.evaluating()),
        python=evaluation_python(GRID, config),
        # No parameter: those of a finished evaluation may change, and its address is no part of what it measured.
        endpoint=lambda wildcards: endpoint_options(config, wildcards.policy, GRID.rows),
    params:
        results=lambda wildcards: GRID.results,
        scale=GRID.scale,
    shell:
        "{resources.python} -u -m evaluation.math.runner --results {params.results:q} --row {wildcards.policy} --scale {params.scale}"
        " --seed {wildcards.policy_seed} --step {wildcards.step} --benchmark {wildcards.benchmark} {resources.endpoint}"
        " 2>&1 | tee -i {log:q}"


rule math_scores:
    """Scores of all mathematics evaluations with their errors, and the lines of every problem."""
    input:
        GRID.evaluated(GRID.evaluations),
    output:
        multiext(f"{OUT}/tables/math", "_scores.csv", "_scores.md", "_problems.csv"),
    log:
        f"{OUT}/logs/tables/math_scores.log",
    conda:
        "environment.yml"
    params:
        evaluations=f"{GRID.source}/evaluations",
        out=subpath(output[0], parent=True),
    shell:
        "python -m evaluation.summary --evaluations {params.evaluations:q} --out {params.out:q} > {log:q} 2>&1"


rule evaluate_swe:
    """SWE-Bench's tasks played by one policy behind an endpoint. What is played outlives a failure."""
    input:
        lambda wildcards: (
            ancient(
                f"{OUT}/runs/{wildcards.policy}/seed{wildcards.policy_seed}/seal.json"
            )
            if wildcards.policy in GRID.rows
            else []
        ),
    output:
        f"{OUT}/evaluations/{{policy}}/seed{{policy_seed}}/step{{step}}/{{benchmark}}/predictions.jsonl",
    log:
        f"{OUT}/logs/evaluations/{{policy}}.seed{{policy_seed}}.step{{step}}.{{benchmark}}.log",
    wildcard_constraints:
        policy="[A-Za-z0-9][A-Za-z0-9_.-]*",
        policy_seed=r"\d+",
        step=r"\d+",
        benchmark="swe_[a-z0-9_]+",
    retries: 1
    conda:
        "experiments/environments/openhands.yaml"
    threads: 2
    resources:
        mem_mb=4000,
        # No parameters: they say where something runs, and not what is measured.
        python=python_command(config),
        options=playing_options(config),
    params:
        results=lambda wildcards: GRID.results,
        scale=GRID.scale,
    shell:
        "{resources.python} -u -m evaluation.swe.runner --results {params.results:q} --row {wildcards.policy}"
        " --scale {params.scale} --seed {wildcards.policy_seed} --step {wildcards.step}"
        " --benchmark {wildcards.benchmark} {resources.options} 2>&1 | tee -i {log:q}"


rule grade_swe:
    """The patches of one policy, graded by the official harness."""
    input:
        ancient(rules.evaluate_swe.output),
    output:
        f"{OUT}/evaluations/{{policy}}/seed{{policy_seed}}/step{{step}}/{{benchmark}}/seal.json",
    log:
        f"{OUT}/logs/evaluations/{{policy}}.seed{{policy_seed}}.step{{step}}.{{benchmark}}.grading.log",
    wildcard_constraints:
        policy="[A-Za-z0-9][A-Za-z0-9_.-]*",
        policy_seed=r"\d+",
        step=r"\d+",
        benchmark="swe_[a-z0-9_]+",
    retries: 1
    conda:
        "experiments/environments/openhands.yaml"
    threads: 2
    resources:
        mem_mb=4000,
        python=python_command(config),
        options=grading_options(config),
    params:
        folder=subpath(output[0], parent=True),
    shell:
        "{resources.python} -u -m evaluation.swe.grade {params.folder:q} --workers {threads} {resources.options}"
        " 2>&1 | tee -i {log:q}"


rule swe_scores:
    """Scores of all SWE-Bench evaluations with their intervals, and the paired tests between them."""
    input:
        lambda wildcards: swe_seals(
            load_scale(GRID.scale), OUT, GRID.paper_rows(), GRID.seeds
        ),
    output:
        multiext(f"{OUT}/tables/swe", "_scores.csv", "_scores.md", "_comparisons.csv"),
    log:
        f"{OUT}/logs/tables/swe_scores.log",
    conda:
        "environment.yml"
    params:
        evaluations=f"{OUT}/evaluations",
        out=subpath(output[0], parent=True),
    shell:
        "python -m evaluation.swe.summary --evaluations {params.evaluations:q} --out {params.out:q} > {log:q} 2>&1"


rule table:
    """One table as CSV, Markdown and LaTeX."""
    input:
        lambda wildcards: GRID.artifact_inputs(wildcards.table),
        lambda wildcards: swe_inputs() if wildcards.table in TABLE_2 else [],
    output:
        report(
            f"{OUT}/tables/{{table}}.csv",
            caption="docs/captions/table.rst",
            category="Tables",
            labels={"table": "{table}"},
        ),
        multiext(f"{OUT}/tables/{{table}}", ".md", ".tex"),
    log:
        f"{OUT}/logs/tables/{{table}}.log",
    conda:
        "environment.yml"
    params:
        state=lambda wildcards: GRID.state(GRID.artifacts[wildcards.table].rows),
        runs=lambda wildcards: GRID.source,
        beside=GRID.beside_options,
        out=subpath(output[0], parent=True),
    shell:
        "python -m analysis.tables --runs {params.runs:q} {params.beside} --out {params.out:q} --artifact {wildcards.table}"
        " > {log:q} 2>&1"


rule figure:
    """One figure as PDF, SVG and PNG."""
    input:
        lambda wildcards: GRID.artifact_inputs(wildcards.figure),
    output:
        f"{OUT}/figures/{{figure}}.pdf",
        report(
            f"{OUT}/figures/{{figure}}.svg",
            caption="docs/captions/figure.rst",
            category="Figures",
            labels={"figure": "{figure}"},
        ),
        multiext(f"{OUT}/figures/{{figure}}", ".png", ".csv"),
    log:
        f"{OUT}/logs/figures/{{figure}}.log",
    conda:
        "environment.yml"
    params:
        state=lambda wildcards: GRID.state(GRID.artifacts[wildcards.figure].rows),
        runs=lambda wildcards: GRID.source,
        beside=GRID.beside_options,
        out=subpath(output[0], parent=True),
    shell:
        "python -m analysis.figures --runs {params.runs:q} {params.beside} --out {params.out:q} --artifact {wildcards.figure}"
        " > {log:q} 2>&1"


rule claims:
    """Each claim of the paper with its verdict, from the paper's rows and those beyond that are finished."""
    input:
        GRID.claim_inputs(),
        lambda wildcards: swe_inputs() if TABLE_2 else [],
    output:
        report(CLAIMS[0], caption="docs/captions/claims.rst", category="Claims"),
        CLAIMS[1:],
    log:
        f"{OUT}/logs/tables/claims.log",
    conda:
        "environment.yml"
    params:
        state=GRID.state(GRID.rows),
        runs=lambda wildcards: GRID.source,
        beside=GRID.beside_options,
        out=subpath(output[0], strip_suffix=".csv"),
    shell:
        "python -m analysis.claims --runs {params.runs:q} {params.beside} --out {params.out:q} > {log:q} 2>&1"


rule claims_beyond:
    """The claims table again, once the rows beyond the paper are finished."""
    input:
        GRID.seals(GRID.beyond_rows()),
    output:
        multiext(f"{OUT}/tables/claims_beyond", ".csv", ".md", ".tex"),
    log:
        f"{OUT}/logs/tables/claims_beyond.log",
    conda:
        "environment.yml"
    params:
        state=GRID.state(GRID.rows),
        runs=lambda wildcards: GRID.source,
        beside=GRID.beside_options,
        out=subpath(output[0], strip_suffix=".csv"),
    shell:
        "python -m analysis.claims --runs {params.runs:q} {params.beside} --out {params.out:q} > {log:q} 2>&1"


rule comparisons:
    """Every row of each table compared with SAO, corrected for the number of comparisons."""
    input:
        GRID.claim_inputs(),
    output:
        report(
            f"{OUT}/tables/comparisons.csv",
            caption="docs/captions/comparisons.rst",
            category="Tables",
            labels={"table": "comparisons with SAO"},
        ),
        multiext(f"{OUT}/tables/comparisons", ".md", ".tex"),
    log:
        f"{OUT}/logs/tables/comparisons.log",
    conda:
        "environment.yml"
    params:
        state=GRID.state(GRID.rows),
        runs=lambda wildcards: GRID.source,
        out=subpath(output[0], strip_suffix=".csv"),
    shell:
        "python -m analysis.comparisons --runs {params.runs:q} --out {params.out:q} > {log:q} 2>&1"


rule published:
    """Checks on the published values; no run is read."""
    input:
        sorted(map(str, Path("results/published").glob("*.csv"))),
    output:
        report(
            f"{OUT}/tables/published.csv",
            caption="docs/captions/published.rst",
            category="Published values",
        ),
        multiext(f"{OUT}/tables/published", ".md", ".tex"),
    log:
        f"{OUT}/logs/tables/published.log",
    conda:
        "environment.yml"
    params:
        out=subpath(output[0], strip_suffix=".csv"),
    shell:
        "python -m analysis.published --out {params.out:q} > {log:q} 2>&1"


rule report:
    """Everything in one HTML file that opens offline, from the paper's rows and those beyond that are finished."""
    input:
        GRID.report_inputs(),
        lambda wildcards: swe_inputs() if TABLE_2 else [],
    output:
        report(
            f"{OUT}/report.html",
            caption="docs/captions/report.rst",
            category="Report",
        ),
    log:
        f"{OUT}/logs/report.log",
    conda:
        "environment.yml"
    params:
        state=GRID.state(GRID.rows),
        runs=lambda wildcards: GRID.source,
        beside=GRID.beside_options,
    shell:
        "python -m analysis.report --runs {params.runs:q} {params.beside} --out {output:q} > {log:q} 2>&1"


rule row:
    """One row beside the paper's values, with its paired difference to SAO."""
    input:
        lambda wildcards: GRID.row_inputs(wildcards.row),
    output:
        f"{OUT}/rows/{{row}}.md",
    log:
        f"{OUT}/logs/rows/{{row}}.log",
    conda:
        "environment.yml"
    params:
        state=lambda wildcards: GRID.state(GRID.page_rows(wildcards.row)),
        runs=lambda wildcards: GRID.source,
        beside=GRID.beside_options,
    shell:
        "python -m analysis.row --runs {params.runs:q} {params.beside} --row {wildcards.row} --out {output:q} 2>&1 | tee -i {log:q}"


rule plan:
    """Runs left with their estimated cost, and what this machine lacks for them."""
    log:
        f"{OUT}/logs/plan.log",
    conda:
        "environment.yml"
    params:
        results=lambda wildcards: GRID.results,
        scale=GRID.scale,
        seeds=",".join(map(str, GRID.seeds)) + ",",
    shell:
        "python -m evaluation.planning --results {params.results:q} --scale {params.scale} --seeds {params.seeds}"
        " 2>&1 | tee -i {log:q}"


rule refuse:
    """Ends a workflow that had to leave out rows as failed, after the other rows have run."""
    output:
        f"{OUT}/no_row_is_refused",
    log:
        f"{OUT}/logs/refused.log",
    conda:
        "environment.yml"
    params:
        results=lambda wildcards: GRID.results,
        scale=GRID.scale,
        seeds=",".join(map(str, GRID.seeds)) + ",",
    shell:
        "python -m sao.grid check --results {params.results:q} --scale {params.scale} --seeds {params.seeds}"
        " > {log:q} 2>&1"


# After a failure, what the failed runs' rows would have shown is made from what there is, and dated before all runs,
# so that the workflow makes it again.
onerror:
    if INTERRUPTS:
        print(
            "Stopped. Finished runs are kept; the same command continues the others from their checkpoints.",
            file=sys.stderr,
        )
    else:
        for table in GRID.unfinished("table"):
            shell(
                "python -m analysis.tables --runs {OUT:q} --out {OUT:q}/tables --artifact {table} || true"
            )
        for figure in GRID.unfinished("figure"):
            shell(
                "python -m analysis.figures --runs {OUT:q} --out {OUT:q}/figures --artifact {figure} || true"
            )
        if GRID.unfinished("table"):
            shell(
                "python -m analysis.claims --runs {OUT:q} --out {OUT:q}/tables/claims || true"
            )
            shell(
                "python -m analysis.report --runs {OUT:q} --out {OUT:q}/report.html || true"
            )
        GRID.age_unfinished()
