"""Write the tables of docs/evidence from the result files that are committed with the tests.

    python docs/evidence/tables.py

A page holds a table between `<!-- table NAME -->` and `<!-- end of table -->`; the script replaces
all text between the two. The same results always give the same bytes. Needs the standard library
alone.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MARKED = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def read(path: str) -> Any:
    """Return the parsed result file at `path`, which is relative to the repository root."""
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


def read_bench(name: str) -> Any:
    """Return the parsed result file of the benchmark `name`."""
    return read(f"tests/benchmarks/results/{name}.json")


def format_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(line)} |\n" for line in (head, *rows)]
    return "".join([lines[0], "|---" * len(head) + "|\n", *lines[1:]])


def format_source(*paths: str) -> str:
    """Return a line with the dates of result files and links to them."""
    dates = sorted({read(path)["date"] for path in paths})
    links = ", ".join(f"[{Path(path).name}](../../{path})" for path in paths)
    return f"\n{', '.join(dates)}: {links}\n"


def format_bench_source(*names: str) -> str:
    """Return a line with the dates of benchmarks' result files and links to them."""
    return format_source(*(f"tests/benchmarks/results/{name}.json" for name in names))


def format_spread(middle: float, spread: Sequence[float], digits: int) -> str:
    """Return a figure with its least and most, such as `0.22 (0.21 to 0.22)`."""
    least, most = spread
    return f"{middle:,.{digits}f} ({least:,.{digits}f} to {most:,.{digits}f})"


def format_values(values: Sequence[float], digits: int) -> str:
    """Return the median of values with their least and most."""
    return format_spread(median(values), (min(values), max(values)), digits)


def format_percent(value: float) -> str:
    """Return a share in percent, without a needless `.0`."""
    return f"{100 * value:.1f}".removesuffix(".0") + "%"


def draw_storage_clients() -> str:
    """Return the CPU seconds and the conduct of three clients of an object store."""
    clients = read_bench("storage-clients")["clients"]
    rounds = list(clients.values())
    rows = [
        [task, *(f"{median(r['tasks'][task]['cpu_seconds'] for r in rs):.2f}" for rs in rounds)]
        for task in rounds[0][0]["tasks"]
    ]
    rows += [
        ["peak memory, MiB", *(f"{median(r['peak_mib'] for r in rs):,.0f}" for rs in rounds)],
        [
            "races of 16 creators with one winner",
            *(f"{min(r['rounds_with_one_winner_of_20'] for r in rs)} of 20" for rs in rounds),
        ],
        [
            "reads that fail in 3 s of 503",
            *(f"{max(r['burst']['failed'] for r in rs)} of 48" for rs in rounds),
        ],
        [
            "a forked process can read",
            *("yes" if all(r["survives_fork"] for r in rs) else "no" for rs in rounds),
        ],
    ]
    return format_table(["CPU seconds", *clients], rows) + format_bench_source("storage-clients")


def draw_document_attention() -> str:
    """Return the cost of attention inside documents over masks and over causal attention."""
    results = read_bench("document-attention")
    rows = []
    for name, figures in results["layer"].items():
        dtype, row, documents = name.split(", ")
        row = row.removeprefix("rows of ")
        cells = [figures["over a mask"], figures["over causal"]]
        rows.append(
            [dtype, f"{int(row):,}", documents.removeprefix("documents of ")]
            + [format_spread(cell["median"], cell["from_to"], 2) for cell in cells]
            + [f"{cells[0]['milliseconds']:.0f}"]
        )
    head = ["precision", "rows of", "documents of", "over a mask", "over causal attention", "ms"]
    return format_table(head, rows) + format_bench_source("document-attention")


def draw_whole_steps_of_documents() -> str:
    """Return the cost of soft caps in blocks and of whole steps, over the same under masks."""
    results = read_bench("document-attention")
    rows = [
        [what, name, format_spread(figures["median"], figures["from_to"], 2)]
        for what, part in (("soft caps, one layer", "soft caps"), ("forward and backward", "step"))
        for name, figures in results[part].items()
    ]
    return format_table(["what", "of", "over a mask"], rows)


def draw_gpu_steps() -> str:
    """Return the newest measurement of each compiled training step on an H200."""
    results = read_bench("gpu-h200")
    runs = [
        ("2026-11-28", results["2026-11-28"]["whole"]),
        ("2026-11-28", results["2026-11-28"]["casts_without_fsdp"]),
        ("2026-11-27", results["2026-11-27"]),
    ]
    names = {
        "fast": "trainrig, fast",
        "deterministic": "trainrig, deterministic",
        "float8": "trainrig, fast, float8",
        "llama": "plain Llama",
        "nanogpt": "nanoGPT's model and loop",
    }
    found: dict[tuple[str, str], tuple[str, Any]] = {}
    for date, run in runs:
        for row in run["rows"]:
            if row["compiled"]:
                found.setdefault((row["size"], row["loop"]), (date, row))
    sizes = list(results["rows_of_a_micro_batch"])
    rows = [
        [
            size,
            name,
            f"{row['tokens_per_second']:,}",
            f"{100 * row['mfu'] + 1e-9:.1f}%",
            f"{row['peak_gib']:.1f}",
            date,
        ]
        for size in sizes
        for loop, name in names.items()
        if (size, loop) in found
        for date, row in [found[size, loop]]
    ]
    head = ["size", "loop, compiled", "tokens/s", "MFU", "peak GiB", "date"]
    link = "[gpu-h200.json](../../tests/benchmarks/results/gpu-h200.json)"
    return format_table(head, rows) + f"\n{link}\n"


def draw_gpu_layouts() -> str:
    """Return the pace of one rank of eight in each layout."""
    rows = [
        [
            row["layout"],
            f"{row['tokens_per_second_a_device']:,}",
            f"{row['step_ms']:,.0f}",
            f"{row['peak_gib']:.1f}",
        ]
        for row in read_bench("gpu-h200")["2026-11-27"]["layouts_of_350M_one_rank_of_8"]
    ]
    return format_table(["layout", "tokens/s of the device", "step, ms", "peak GiB"], rows)


def draw_tuning_pace() -> str:
    """Return the pace of tuning beside TRL."""
    what = {
        "sft": "SFT on GSM8K, trained targets/s",
        "lora-sft": "SFT by LoRA of rank 8, trained targets/s",
        "dpo": "DPO on HH, steps/s, references counted",
    }
    rows = []
    for name, label in what.items():
        results = read_bench(f"{name}-beside-trl")
        digits = 2 if name == "dpo" else 0
        rows.append(
            [
                label,
                format_values(results["ours_per_second"], digits),
                format_values(results["trl_per_second"], digits),
                format_spread(results["ratio"], results["ratio_from_to"], 2),
            ]
        )
    results = read_bench("grpo-beside-trl")
    rows.append(
        [
            "GRPO, steps/s",
            format_values(results["ours_steps_per_second"], 2),
            format_values(results["trl_steps_per_second"], 2),
            format_spread(results["ratio"], results["ratio_from_to"], 2),
        ]
    )
    names = [f"{name}-beside-trl" for name in (*what, "grpo")]
    head = ["what", "trainrig", "TRL", "trainrig over TRL"]
    return format_table(head, rows) + format_bench_source(*names)


def draw_tuning_memory() -> str:
    """Return the peak memory of tuning beside TRL."""
    what = {"sft": "SFT", "lora-sft": "SFT by LoRA", "dpo": "DPO, references counted"}
    rows = []
    for name, label in what.items():
        results = read_bench(f"{name}-memory-beside-trl")
        peaks = [
            [f"{median(r[who]['peak'] - r[who]['before'] for r in results['rounds']):,.0f}"]
            for who in ("ours", "trl")
        ]
        spread = format_spread(results["ratio"], results["ratio_from_to"], 2)
        rows.append([label, *peaks[0], *peaks[1], spread])
    names = [f"{name}-memory-beside-trl" for name in what]
    head = ["what", "trainrig, MiB", "TRL, MiB", "trainrig over TRL"]
    return format_table(head, rows) + format_bench_source(*names)


def format_interval(interval: Sequence[float], digits: int) -> str:
    """Return a mean with the half width of its interval, such as `0.69 ± 0.02`."""
    mean, half = interval
    return f"{mean:.{digits}f} ± {half:.{digits}f}"


def draw_grpo_learning() -> str:
    """Return what GRPO learns beside TRL: means over seeds with 95% intervals."""
    path = "tests/rl/results/grpo_beside_trl.json"
    results = read(path)
    sides = [results["means"][side] for side in ("ours", "trl")]
    held_out = (
        [100 * figure for figure in interval]
        for interval in (*(side["exact"] for side in sides), results["means"]["ours_less_trl"])
    )
    ours, trl, difference = (format_interval(interval, 1) for interval in held_out)
    start = f"{100 * results['start']:.1f}"
    rows = [["held-out sums right, %", start, ours, trl, difference]]
    for name, label, digits in (
        ("reward", "reward", 3),
        ("entropy", "entropy, nats per token", 3),
        ("divergence", "divergence (k3), nats per token", 3),
        ("tokens", "tokens of an answer", 2),
    ):
        first = " and ".join(f"{side[f'{name}_first'][0]:.{digits}f}" for side in sides)
        last = [format_interval(side[f"{name}_last"], digits) for side in sides]
        rows.append([label, first, *last, ""])
    head = ["figure", "at the start", "trainrig", "TRL", "trainrig less TRL, by seed"]
    return format_table(head, rows) + format_source(path)


def draw_policy_alarms() -> str:
    """Return the alarms of runs that learn and of runs that are misled."""
    path = "tests/rl/results/alarms.json"
    results = read(path)
    rows = []
    for name, run in results["runs"].items():
        alarms = ", ".join(f"`{alarm}` at {step}" for alarm, (step, _) in run["alarms"].items())
        rewards = ", ".join(f"{reward:.2f}" for reward in run["reward"])
        right = " → ".join(f"{100 * share:.0f}" for share in run["exact"])
        rows.append([name, str(run["steps"]), rewards, right, alarms or "none"])
    head = ["run", "steps", "reward, first and last tenth", "right, %", "alarms, and their step"]
    return format_table(head, rows) + format_source(path)


def draw_grpo_shares() -> str:
    """Return the share of each part in the time of a GRPO step."""
    names = {"data": "sampling, rewards, and the pass that reads the batch"}
    shares = read_bench("grpo-beside-trl")["share_of_a_step"]
    rows = [[names.get(part, part), f"{share:.2f}"] for part, share in shares.items()]
    return format_table(["part of a step", "share"], rows)


def draw_peer_steps() -> str:
    """Return steps of trainrig, nanoGPT and Transformers as shares of the matrix product."""
    shares = read_bench("step-beside-peers")["shares"]
    loops = list(next(iter(shares.values())))
    names = [loop.replace("ours", "trainrig") for loop in loops]
    rows = [
        [name, *(f"{figures[loop]['median']:.3f}" for figures in shares.values())]
        for loop, name in zip(loops, names, strict=True)
    ]
    return format_table(["loop", *shares], rows) + format_bench_source("step-beside-peers")


def draw_shakespeare() -> str:
    """Return held-out losses and times of tiny Shakespeare beside nanoGPT's loop."""
    seeds = read_bench("shakespeare-beside-nanogpt")["seeds"]
    loops = [loop for loop in seeds[0] if loop != "seed"]
    rows = [
        [
            loop.replace("ours", "trainrig"),
            ", ".join(f"{seed[loop]['loss']:.3f}" for seed in seeds),
            ", ".join(
                f"{seed[loop]['seconds'] / seed['nanoGPT']['seconds']:.2f}" for seed in seeds
            ),
        ]
        for loop in loops
    ]
    head = ["loop", "held-out loss of three seeds", "CPU time over nanoGPT's"]
    return format_table(head, rows) + format_bench_source("shakespeare-beside-nanogpt")


def draw_model_costs() -> str:
    """Return the memory of a step, the pace of experts and the cost of metrics."""
    memory = read_bench("step-memory-beside-transformers")
    experts = read_bench("experts-beside-dense")
    metrics = read_bench("metrics-cost")
    percents = [format_percent(metrics["cpu_seconds_added"])]
    percents += [format_percent(value) for value in metrics["interval_95"]]
    rows = [
        [
            f"peak memory of a step of 124M parameters, virtual workers: {workers}",
            "Transformers' Llama in a plain loop",
            format_spread(memory["ratios"][workers], memory["ratios_from_to"][workers], 2),
        ]
        for workers in ("8", "1")
    ]
    rows += [
        [
            f"tokens per CPU second, {experts['experts']} experts, {experts['active']} active",
            "a dense model with as many active parameters",
            format_spread(experts["pace"], experts["pace_from_to"], 2),
        ],
        [
            "CPU time of all metrics at their defaults",
            f"a step of {metrics['cpu_seconds_of_a_step']:.2f} s without",
            f"{percents[0]} more (95%: {percents[1]} to {percents[2]})",
        ],
    ]
    names = ["step-memory-beside-transformers", "experts-beside-dense", "metrics-cost"]
    return format_table(["what", "compared with", "result"], rows) + format_bench_source(*names)


def draw_metrics_cost() -> str:
    """Return the counted cost of metrics as shares of a step."""
    names = {"kernels_of_the_table_of_losses": "kernels of the loss table"}
    counted = read_bench("metrics-cost")["counted"]
    figures = list(next(iter(counted.values())))
    rows = [
        [model, *(f"{100 * shares[figure]:.2f}%" for figure in figures)]
        for model, shares in counted.items()
    ]
    head = ["model", *(names.get(figure, figure) for figure in figures)]
    return format_table(head, rows) + format_bench_source("metrics-cost")


def draw_eight_workers() -> str:
    """Return the largest differences between eight workers and one, by layout."""
    path = "tests/train/results/eight_workers.json"

    def show(value: float) -> str:
        return f"{value:.0e}" if value else "0, bit-identical"

    rows = [
        [layout, show(found["losses"]), show(found["weights"])]
        for layout, found in read(path)["differences"].items()
    ]
    head = ["layout of eight workers", "losses, relative", "weights"]
    return format_table(head, rows) + format_source(path)


def draw_layout_kills() -> str:
    """Return the number of kills in each layout and their effect."""
    path = "tests/train/results/layout_kills.json"
    results = read(path)
    result = "bit-identical" if results["byte_equal"] else "differs"
    rows = [
        [
            layout,
            str(len(kills)),
            " and ".join(str(size) for size in sorted({kill["of"] for kill in kills})),
            result,
        ]
        for layout, kills in results["kills"].items()
    ]
    head = ["layout", "ranks killed", "workers, in turns", "losses, norms, samples, tensors"]
    return format_table(head, rows) + format_source(path)


def draw_approach_coverage() -> str:
    """Return how often the intervals of other approaches hold the true value."""
    path = "tests/scaling/results/approaches.json"
    rows = [
        [approach, ", ".join(f"{format_percent(v['coverage'])} of {q}" for q, v in found.items())]
        for approach, found in read(path)["coverage_of_95%"].items()
    ]
    return format_table(["approach", "coverage"], rows) + format_source(path)


def draw_parametric_coverage() -> str:
    """Return how often bootstrap and profile intervals hold the true value."""
    path = "tests/scaling/results/coverage.json"
    rows = [
        [
            sweeps,
            *(
                f"{format_percent(min(found[kind].values()))} to "
                f"{format_percent(max(found[kind].values()))}"
                for kind in ("bootstrap", "profile")
            ),
        ]
        for sweeps, found in read(path)["coverage"].items()
    ]
    return format_table(["sweeps", "bootstrap", "profile"], rows) + format_source(path)


def draw_law_zoo() -> str:
    """Return how well the default law of each published set foretells its larger runs."""
    rows = []
    for name, found in read_bench("law-zoo")["sets"].items():
        by_form = ", ".join(f"{kind} {one:.2%}" for kind, one in found["error_by_form"].items())
        shares = ", ".join(f"{share:.0%} {kind}" for kind, share in found["shares"].items())
        within = f"{found['within']} of {found['predicted']}"
        rows.append([name, str(found["runs"]), by_form, shares, f"{found['error']:.2%}", within])
    head = ["set", "runs", "mean error of each form", "shares", "error together", "within 95%"]
    return format_table(head, rows) + format_bench_source("law-zoo")


def draw_crossed_curves() -> str:
    """Return the errors of a schedule's losses that two other schedules foretell."""
    rows = []
    for found in read_bench("learning-curves")["crossed"]:
        errors = [f"{found['end']:+.2%}", f"{found['mean']:.2%}", f"{found['worst']:.2%}"]
        rows.append([found["schedule"], str(found["seed"]), f"{found['loss']:.4f}", *errors])
    head = ["foretold", "seed", "last loss", "error of the end", "mean error", "worst error"]
    return format_table(head, rows) + format_bench_source("learning-curves")


def draw_begun_curves() -> str:
    """Return the errors of the end of a run that its beginning foretells."""
    groups: dict[tuple[str, float, bool], list[Any]] = {}
    for found in read_bench("learning-curves")["begun"]:
        key = found["schedule"], found["share"], found["helped"]
        groups.setdefault(key, []).append(found)
    rows = []
    for (schedule, share, helped), runs in groups.items():
        errors = ", ".join(f"{run['error']:+.2%}" for run in runs)
        known = [run["interval"] for run in runs if run["interval"]]
        held = f"{sum(run['held'] for run in runs)} of {len(known)}"
        widths = ", ".join(f"{(high - low) / (high + low):.1%}" for low, high in known)
        others = "with the two other schedules" if helped else "alone"
        rows.append([schedule, f"{share:.0%}", others, errors, held, f"± {widths}"])
    head = ["run", "trained", "fitted", "error of the end, two seeds", "within 95%", "interval"]
    return format_table(head, rows) + format_bench_source("learning-curves")


def draw_prediction_coverage() -> str:
    """Return how often intervals of predicted losses hold the loss, by the true form."""
    rows = []
    for kind, by_runs in read_bench("prediction-coverage")["held"].items():
        for runs, found in by_runs.items():
            held = f"{found['held_together']:.1%} ± {found['standard_error']:.1%}"
            widths = ", ".join(f"{width:.1%}" for width in found["width"])
            errors = ", ".join(f"{error:.2%}" for error in found["error"])
            rows.append([kind, runs, held, widths, errors])
    head = ["true form", "runs", "held", "median width at 3 and 10 times", "mean error"]
    return format_table(head, rows) + format_bench_source("prediction-coverage")


def draw_optimal_designs() -> str:
    """Return how well designs of equal cost predict the same larger run."""
    results = read_bench("optimal-designs")
    rows = []
    for kind, by_design in results["found"].items():
        for name, found in by_design.items():
            size = results["designs"][name]
            low, high = ("none" if width is None else f"{width:.1%}" for width in found["widths"])
            rows.append(
                [
                    f"{name}, {kind}",
                    f"{size['trials']}, {size['runs']}",
                    f"{found['error']:.2%}",
                    f"{found['width']:.1%} ({low} to {high})",
                    f"{found['held']:.0f} of {results['sweeps']}",
                ]
            )
    head = ["design", "trials, runs", "root mean square error", "width: median, range", "held"]
    return format_table(head, rows) + format_bench_source("optimal-designs")


def draw_real_sweep() -> str:
    """Return the results of the real sweep and the prediction of its largest run."""
    path = "tests/chaos/results/sweep.json"
    results = read(path)
    sweep, largest = results["sweep"], results["largest"]
    sizes = f"{sweep['parameters_least']:,} to {sweep['parameters_most']:,} parameters"
    rows = [
        ["runs of the sweep", f"{sweep['points']}, of {sizes}"],
        ["compute of the sweep, 6ND", f"{sweep['flops_6nd_of_points']:.1e} FLOPs"],
        ["wall time, two cores", f"{results['seconds'] / 60:.0f} minutes"],
        ["attempts of a trial, driver killed once", f"{results['attempts_most']} at most"],
        ["standard deviation between two seeds", f"{sweep['noise_nats']:.4f} nats"],
        ["overhead of a trial", f"{results['overhead_seconds_a_trial']:.2f} s"],
        ["form", f"{results['constants']['form']}; the parametric one has no minimum here"],
        [
            "loss predicted for a run of twice the compute",
            f"{largest['predicted']:.3f} ({largest['low']:.3f} to {largest['high']:.3f})",
        ],
        ["loss measured", f"{largest['measured']:.3f}: error {100 * largest['error']:.1f}%"],
    ]
    return format_table(["what", "result"], rows) + format_source(path)


def draw_kills() -> str:
    """Return the time of a run with twenty kills, by what it was spent on."""
    path = "tests/chaos/results/kills.json"
    results = read(path)
    seconds = {name: value for name, value in results["seconds"].items() if value}
    names = {"lost": "steps taken again", "stall": "held up by checkpoints"}
    rows = [[names.get(name, name), f"{value:.1f}"] for name, value in seconds.items()]
    return format_table(["seconds of the run", "s"], rows) + format_source(path)


def draw_spot_storm() -> str:
    """Return the results of the rehearsed loss of spot machines."""
    path = "tests/chaos/results/spot_storm.json"
    results = read(path)
    rows = [
        ["length of the storm", f"{results['seconds of storm']:.0f} s, four nodes"],
        [
            "nodes lost, with notice in time, returned",
            f"{results['losses']}, {results['of them drained in time']}, {results['returns']}",
        ],
        ["curations, one after another", f"{results['curations']}, same bytes as the calm one"],
        ["training steps, taken again", f"{results['steps']}, {results['steps redone']}"],
        ["starts of the training run", ", ".join(results["attempts"])],
        ["goodput", format_percent(results["goodput"])],
        ["restarts", f"{results['seconds']['restart']:.0f} s"],
    ]
    return format_table(["what", "result"], rows) + format_source(path)


def draw_clean_runs() -> str:
    """Return how many losses and norms of calm runs lie beyond each threshold."""
    paths = [f"tests/train/results/clean_run_{seed}.json" for seed in range(3)]
    runs = [read(path) for path in paths]
    rows = []
    for figure in runs[0]["outliers"]:
        for deviations in runs[0]["outliers"][figure]:
            counts = [run["outliers"][figure].get(deviations, 0) for run in runs]
            rows.append([figure, deviations, ", ".join(map(str, counts)), str(sum(counts))])
    head = ["figure", "deviations above the median", "steps of each run", "sum"]
    return format_table(head, rows) + format_source(*paths)


def draw_unigram() -> str:
    """Return the pieces of unseen text, before and since SentencePiece trains unigram models."""
    rows = []
    for row in read_bench("kept-libraries")["unigram"]["rows"]:
        before, since = row["before"], row["sentencepiece"]
        change = format_percent(since["pieces"] / before["pieces"] - 1)
        seconds = f"{before['cpu_seconds']:.1f}, {since['cpu_seconds']:.1f}"
        sizes = [f"{count:,}" for count in (row["wanted"], before["pieces"], since["pieces"])]
        rows.append([row["text"], *sizes, change, seconds])
    head = ["text", "vocabulary", "trainrig's own", "SentencePiece", "change", "CPU seconds"]
    return format_table(head, rows) + format_bench_source("kept-libraries")


def draw_telephone_numbers() -> str:
    """Return the telephone numbers that trainrig and phonenumbers find in crawled pages."""
    rows = [
        [
            name,
            *(str(row[key]) for key in ("finds", "right", "lacks")),
            format_values(row["times"], 1),
        ]
        for name, row in read_bench("kept-libraries")["telephone_numbers"]["rows"].items()
    ]
    head = [
        "finder",
        "finds",
        "of them right",
        "right finds that it lacks",
        "times trainrig's time",
    ]
    return format_table(head, rows) + format_bench_source("kept-libraries")


def draw_index() -> str:
    """Return the pages of this folder with the first sentence of each."""
    rows = []
    for page in sorted(HERE.glob("*.md")):
        if page.name != "README.md":
            title, text, *_ = page.read_text(encoding="utf-8").split("\n\n")
            name = title.removeprefix("# ").removeprefix("Evidence: ")
            sentence = re.split(r"(?<=[.:]) (?=[A-Z[*])", " ".join(text.split()))[0]
            rows.append([f"[{name[0].upper()}{name[1:]}]({page.name})", sentence])
    return format_table(["page", "what it holds"], rows)


def draw_families() -> str:
    """Return the largest differences of logits from Transformers', by family."""
    path = "tests/models/families/results/families.json"
    found = read(path)
    kinds: dict[str, list[dict[str, Any]]] = {}
    for model in found["models"].values():
        kinds.setdefault(model["model_type"], []).append(model)
    rows = [
        [
            f"`{kind}`",
            str(len(models)),
            f"{max(model['imported'] / model['spread'] for model in models):.1e}",
            f"{max(model['exported'] for model in models):.1e}",
        ]
        for kind, models in sorted(kinds.items())
    ]
    head = ["family", "models", "imported, relative", "exported again"]
    return format_table(head, rows) + format_source(path)


TABLES: dict[str, Callable[[], str]] = {
    "storage-clients": draw_storage_clients,
    "approach-coverage": draw_approach_coverage,
    "clean-runs": draw_clean_runs,
    "document-attention": draw_document_attention,
    "document-attention-steps": draw_whole_steps_of_documents,
    "eight-workers": draw_eight_workers,
    "gpu-layouts": draw_gpu_layouts,
    "gpu-steps": draw_gpu_steps,
    "grpo-learning": draw_grpo_learning,
    "grpo-shares": draw_grpo_shares,
    "policy-alarms": draw_policy_alarms,
    "families": draw_families,
    "index": draw_index,
    "kills": draw_kills,
    "begun-curves": draw_begun_curves,
    "crossed-curves": draw_crossed_curves,
    "law-zoo": draw_law_zoo,
    "layout-kills": draw_layout_kills,
    "metrics-cost": draw_metrics_cost,
    "model-costs": draw_model_costs,
    "optimal-designs": draw_optimal_designs,
    "parametric-coverage": draw_parametric_coverage,
    "peer-steps": draw_peer_steps,
    "prediction-coverage": draw_prediction_coverage,
    "real-sweep": draw_real_sweep,
    "shakespeare": draw_shakespeare,
    "spot-storm": draw_spot_storm,
    "telephone-numbers": draw_telephone_numbers,
    "tuning-memory": draw_tuning_memory,
    "tuning-pace": draw_tuning_pace,
    "unigram": draw_unigram,
}


def fill(text: str) -> str:
    """Return a page's text with the tables between its markers made from the results."""
    return MARKED.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n{found[3]}", text)


def main() -> None:
    """Write the tables into all pages of this folder."""
    for page in sorted(HERE.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        page.write_text(fill(text), encoding="utf-8")


if __name__ == "__main__":
    main()
