"""Rooms of scaling/; estimate/."""

MOVES = {
    "scaling.cost": "estimate.cost",
    "scaling.memory": "estimate.memory",
    "scaling.layouts": "estimate.layouts",
    "models.flops": "estimate.flops",
    "scaling.ladder": "scaling.model_ladder",
    "scaling.rules": "scaling.batch_rate_rules",
    # sweep
    "scaling.sweep": "scaling.sweep.sweep",
    "scaling.sweep_run": "scaling.sweep.run_file",
    "scaling.sweep_table": "scaling.sweep.sweep_table",
    "scaling.board": "scaling.sweep.sweep_progress",
    "scaling.designs": "scaling.sweep.designs",
    "scaling.search": "scaling.sweep.search_settings",
    "scaling.searching": "scaling.sweep.search_trials",
    "scaling.trial": "scaling.sweep.trial",
    "scaling.trials": "scaling.sweep.trials",
    "scaling.trial_keeper": "scaling.sweep.trial_agent",
    "scaling.work": "scaling.sweep.trial_process",
    # laws
    "scaling.runs": "scaling.laws.runs_table",
    "scaling.csv_tables": "scaling.laws.csv_tables",
    "scaling.forms": "scaling.laws.forms",
    "scaling.law": "scaling.laws.law",
    "scaling.published": "scaling.laws.published",
    "scaling.fit": "scaling.laws.fit",
    "scaling.fit_verb": "scaling.laws.fit_options",
    "scaling.fitting": "scaling.laws.fit_verb",
    "scaling.recipes": "scaling.laws.recipes",
    "scaling.screening": "scaling.laws.screening",
    "scaling.summary": "scaling.laws.summary",
    "scaling.choosing": "scaling.laws.choose_form",
    "scaling.fit_progress": "scaling.laws.fit_progress",
    "scaling.spelling": "scaling.laws.figure_format",
    "scaling.data_constrained_curve": "scaling.laws.regression.data_constrained_curve",
    "scaling.noise_scale": "scaling.laws.noise_scale",
    "scaling.regression": "scaling.laws.regression.regression",
    "scaling.minimise": "scaling.laws.regression.minimise",
    "scaling.enough": "scaling.laws.regression.identifiability",
    "scaling.bootstrap": "scaling.laws.regression.bootstrap",
    "scaling.profile": "scaling.laws.regression.profile",
    "scaling.held_out": "scaling.laws.regression.held_out",
    "scaling.parametric": "scaling.laws.regression.parametric",
    "scaling.data_constrained": "scaling.laws.regression.data_constrained",
    "scaling.overtraining": "scaling.laws.regression.overtraining",
    "scaling.kaplan_form": "scaling.laws.regression.kaplan_form",
    "scaling.approaches": "scaling.laws.approaches.approaches",
    "scaling.envelope": "scaling.laws.approaches.envelope",
    "scaling.isoflop": "scaling.laws.approaches.isoflop",
    "scaling.kaplan": "scaling.laws.approaches.kaplan",
    "scaling.power": "scaling.laws.approaches.power",
    "scaling.pages": "scaling.laws.pages",
    "scaling.pages.doubts": "scaling.laws.pages.fit_warnings",
    # plan
    "scaling.pages.plan_page": "scaling.plan.plan_page",
    "scaling.plan": "scaling.plan.plan",
    "scaling.planning": "scaling.plan.planner",
    "scaling.plan_answer": "scaling.plan.plan_verb",
    "scaling.plan_verb": "scaling.plan.plan_options",
    "scaling.plan_run": "scaling.plan.plan_run",
    "scaling.plan_text": "scaling.plan.plan_text",
    "scaling.flags": "scaling.plan.plan_warnings",
    "scaling.division": "scaling.plan.allocation",
    "scaling.prediction": "scaling.plan.loss_prediction",
    "scaling.predict_verb": "scaling.plan.predict_options",
    # mixture
    "scaling.mixture.judging": "scaling.mixture.validation",
    "scaling.mixture.doubts": "scaling.mixture.fit_warnings",
}
PACKAGES = {
    "estimate": "What a run takes: FLOPs, memory, hours, money, on which devices.",
    "scaling.sweep": "Sweeps: small models trained by Ray Tune, and the table of their losses.",
    "scaling.laws": "Scaling laws: tables of runs in, fitted laws with intervals out.",
    "scaling.laws.regression": "Laws as regressions of log loss: minimised, checked, with intervals.",
    "scaling.laws.approaches": "The optimum by each published approach: envelope, isoFLOP, parametric, Kaplan.",
    "scaling.plan": "Plans: from a law and a budget to a run file.",
}
TEST_MOVES = {
    "tests/scaling/pages/test_pages.py": "tests/scaling/laws/pages/test_pages.py",
    "tests/scaling/test_coverage.py": "tests/scaling/laws/test_coverage.py",
    "tests/scaling/test_coverage_of_approaches.py": "tests/scaling/laws/approaches/test_coverage_of_approaches.py",
}


def open_circles(tree, say):
    """The two circles of imports: Runs.read, and the page of a mixture."""
    import re

    laws = tree / "platform/trainrig/scaling/laws"
    table = (laws / "runs_table.py").read_text()
    found = re.search(r"    @classmethod\n    def read\(cls.*?\n\n(?=    def )", table, re.S)
    private = re.search(r"^def _read_parquet\(.*?(?=^\S|\Z)", table, re.S | re.M)
    if not found or not private:
        say("circles: Runs.read is not what it was")
    else:
        method = found[0]
        body = method[method.index('        """') :]
        body = re.sub(r"^    ", "", body, flags=re.M)
        body = body.replace("        from trainrig.scaling.laws.csv_tables import read_csv\n\n", "")
        table = table.replace(method, "")
        table = table.replace("_read_parquet", "read_parquet")
        (laws / "runs_table.py").write_text(table)
        (laws / "read_table.py").write_text(
            '"""Tables of runs from where they are kept: a sweep\'s folder, Parquet, CSV."""\n\n'
            "from collections.abc import Mapping\n\n"
            "from trainrig import storage\n"
            "from trainrig.errors import DataError\n"
            "from trainrig.scaling.laws.csv_tables import read_csv\n"
            "from trainrig.scaling.laws.runs_table import RUNS_FILE, Runs, read_parquet\n\n\n"
            "def read_table(path: str, columns: Mapping[str, str] | None = None) -> Runs:\n"
            + body.rstrip().replace("_read_parquet", "read_parquet")
            + "\n"
        )
        table = (laws / "runs_table.py").read_text()
        if '    """' not in table.split("def read_parquet", 1)[1].split("\n", 2)[1]:
            head, tail = table.split("def read_parquet", 1)
            line, rest = tail.split("\n", 1)
            table = f'{head}def read_parquet{line}\n    """Read the table at `path`. Raises DataError."""\n{rest}'
            (laws / "runs_table.py").write_text(table)
    for path in [*tree.glob("platform/**/*.py"), *tree.glob("tests/**/*.py"), *tree.glob("jobs/*.py")]:
        text = path.read_text()
        new = re.sub(r"(?<![\w.])Runs\.read\(", "read_table(", text)
        if new != text:
            line = "from trainrig.scaling.laws.read_table import read_table\n"
            at = re.search(r"^from trainrig\.scaling\.laws\.runs_table import", new, re.M)
            if at:
                new = new[: at.start()] + line + new[at.start() :]
            else:
                say(f"circles: {path}: read_table is not imported")
            path.write_text(new)
    mixture = tree / "platform/trainrig/scaling/mixture"
    text = (mixture / "fitting.py").read_text()
    moved = [re.search(rf"^def {name}\(.*?(?=^\S|\Z)", text, re.S | re.M) for name in ("write_mixture", "_check_sources")]
    if None in moved:
        say("circles: write_mixture is not what it was")
        return
    code = "\n\n".join(each[0].rstrip() + "\n" for each in moved)
    code = code.replace("    from trainrig.scaling.mixture.page import mixture_page\n\n", "").replace("_run_file(", "read_run(")
    for each in moved:
        text = text.replace(each[0], "")
    head = text[: text.index("RECORD, SECTION")]
    imports = head[head.index("import json") :]
    public = ["PAGE", "RECORD", "RUN", "SECTION", "MixtureFit", "MixtureRecord", "fit_mixture", "read_run", "section", "with_weights"]
    (mixture / "fitting.py").write_text(text.replace("_run_file(", "read_run("))
    (mixture / "write_mixture.py").write_text(
        '"""`trainrig mixture`: fits, and writes the record, the run file and the page."""\n\n'
        + imports.replace("import MixtureRecord, ", "import MixtureRecord, ")
        + "from trainrig.scaling.mixture.fitting import " + ", ".join(p for p in public if p != "MixtureRecord") + "\n"
        + "from trainrig.scaling.mixture.page import mixture_page\n\n\n" + code
    )
    for path in [*tree.glob("platform/**/*.py"), *tree.glob("tests/**/*.py")]:
        text = path.read_text()
        found = re.search(r"^ *from trainrig\.scaling\.mixture\.fitting import (\([^)]*\)|[^\n(]*)\n", text, re.M)
        if found and "write_mixture" in found[1] and path.name != "write_mixture.py":
            new = re.sub(r"\bwrite_mixture\b,?\s*", "", found[0]).rstrip().rstrip(",") + "\n"
            new += " " * (len(new) - len(new.lstrip())) + "from trainrig.scaling.mixture.write_mixture import write_mixture\n"
            text = text.replace(found[0], new)
            path.write_text(text)


HOOKS = [open_circles]
