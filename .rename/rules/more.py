"""What a look over the renamed tree found left."""

NAMES = [
    ("train.run.run_charts.RunStory", "RunReportData"),
    ("train.run.run_page.read_story", "read_report_data"),
    ("train.run.goodput.account", "account_time"),
    ("corpus.dedup.span_file.load_cuts", "load_spans"),
    ("quickstart.report.planted_results._fate", "_outcome"),
    ("quickstart.report.collect.tell", "collect_results"),
    ("tokens.row_view._stretch", "_piece_at"),
    ("corpus.filters.presets._together", "_together"),
]
NAMES = [each for each in NAMES if not each[0].endswith("." + each[1])]
LAUNCH = "platform/trainrig/launch/* tests/launch/*"
TOKENS = [
    ("story", "run_data", "platform/trainrig/train/run/* tests/train/run/* tests/train/test_run_page.py"),
    ("find_copies", "find_duplicates", "platform/trainrig/corpus/curate.py"),
    ("fates", "outcomes", "platform/trainrig/quickstart/* tests/quickstart/*"),
    ("fate", "outcome", "platform/trainrig/quickstart/* tests/quickstart/*"),
    ("beat", "heartbeat", LAUNCH),
    ("attended", "supervised", "platform/trainrig/launch/cost/spending.py platform/trainrig/launch/supervise/* tests/launch/cost/test_spending.py tests/launch/supervise/test_previous_supervisor.py"),
    ("meet", "add", "platform/trainrig/corpus/dedup/pairs/key_filter.py platform/trainrig/corpus/dedup/pairs/document_reference.py platform/trainrig/corpus/dedup/pairs/shared_keys.py tests/corpus/dedup/pairs/test_key_filter.py"),
    ("met_again", "appears_again", "platform/trainrig/corpus/dedup/pairs/key_filter.py platform/trainrig/corpus/dedup/pairs/document_reference.py platform/trainrig/corpus/dedup/pairs/shared_keys.py tests/corpus/dedup/pairs/*"),
    ("_meet", "_add", "platform/trainrig/corpus/dedup/pairs/key_filter.py"),
    ("_met_again", "_appears_again", "platform/trainrig/corpus/dedup/pairs/key_filter.py"),
    ("cuts", "thresholds", "platform/trainrig/corpus/filters/* platform/trainrig/corpus/stages/apply_rules.py"),
    ("patience", "timeouts", "tests/launch/clusters/*"),
]
WORDS = [
    ("`story`", "`run_data`", "platform/trainrig/train/run/*"),
]
NAMES += [
    ("parallel.mesh.KNOCK", "PROBE_SECONDS"),
    ("parallel.mesh.LONGEST_KNOCK", "LONGEST_PROBE"),
]
TOKENS += [
    ("next_beat", "next_heartbeat", LAUNCH),
    ("_next_beat", "_next_heartbeat", LAUNCH),
    ("story", "results", "platform/trainrig/quickstart/path.py"),
]
PATCHES = [
    (
        "tests/benchmarks/test_curate.py",
        "    CurationSource(name=name, paths=tuple(paths), wipe_out=all_may_go) for name, paths in given.items()\n",
        "    CurationSource(name=name, paths=tuple(paths), wipe_out=all_may_go)\n    for name, paths in given.items()\n",
    ),
    (
        "tests/launch/supervise/test_takeover.py",
        "    record, record.attempt(int(number)), Limits(), command, Pace(heartbeat=0.1, look=0.05, poll=0.02)\n",
        "    record,\n    record.attempt(int(number)),\n    Limits(),\n    command,\n    Pace(heartbeat=0.1, look=0.05, poll=0.02),\n",
    ),
    (
        "tests/test_figures.py",
        '    ax, [figures.BarRow("a", (1,), "1")], [figures.BarPart("p", figures.C1, hatched=True)], "n"), 100))\n',
        '    ax, [figures.BarRow("a", (1,), "1")],\n    [figures.BarPart("p", figures.C1, hatched=True)], "n"), 100))\n',
    ),
]
TOKENS += [
    ("meeting", "rendezvous", "platform/trainrig/parallel/mesh.py platform/trainrig/scaling/sweep/trial.py tests/parallel/* tests/train/*"),
]
WORDS += [
    ("knocked at", "probed", "platform/trainrig/parallel/* docs/*"),
    ("at the door where ranks meet", "of the rendezvous endpoint", "platform/trainrig/parallel/mesh.py"),
]
