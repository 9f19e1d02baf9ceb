"""One line about a run, from its steps.jsonl and what it printed:

    bench_report.py NAME RANKS STEPS.JSONL CONSOLE.LOG ["TOKENS_PER_SECOND_PER_GPU what the peer did"]

Medians are of the steps after the tenth, or of the later half of a shorter run. MFU: the model's FLOPs a token as the run
prints them, 6 for each parameter that a token is multiplied with and 6 x layers x heads x head size x row length for
causal attention, against the 989 TFLOP/s of an H100 or H200 in dense bf16.
"""

import json
import re
import statistics
import sys

PEAK = 989e12
WARM_UP = 10
COUNTS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}


def steps_of(path):
    with open(path, encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines if line.strip()]
    steps = [record["step"] for record in records if "step" in record]
    if not steps:
        sys.exit(f"bench_report.py: {path} has no step")
    return steps


def flops_per_token(text):
    found = re.search(r"([0-9.]+)([KMGBT]?) FLOPs per token", text)
    if not found:
        sys.exit("bench_report.py: the run did not print its FLOPs per token")
    return float(found[1]) * COUNTS[found[2]]


def planned_memory(text):
    found = re.search(r"^sum +device +([0-9.]+ \S+)", text, re.MULTILINE)
    return found[1] if found else "unknown"


def gibibytes(count):
    return f"{count / 2**30:.1f} GiB"


def report(name, ranks, steps, text, peer):
    measured = steps[WARM_UP:] if len(steps) >= 2 * WARM_UP else steps[len(steps) // 2 :]
    rate = statistics.median(step["tokens_per_second"] for step in measured) / ranks
    last = steps[-1]
    active, reserved = last["memory_bytes"], last.get("memory_reserved_bytes", last["memory_bytes"])
    grown = active - steps[min(1, len(steps) - 1)]["memory_bytes"]
    line = f"{name}: {rate:,.0f} tokens/s a GPU on {ranks} (median of {len(measured)} steps)"
    line += f", MFU {rate * flops_per_token(text) / PEAK:.1%}"
    if peer:
        figure, _, what = peer.partition(" ")
        line += f", {rate / float(figure):.2f} of {float(figure):,.0f} ({what})"
    line += f"; memory {planned_memory(text)} planned, {gibibytes(active)} active, {gibibytes(reserved)} reserved"
    line += f" ({(reserved - active) / reserved:.1%} more), {gibibytes(grown)} more than after step 2"
    reads = statistics.median(step["device_reads"] for step in measured)
    line += f", {last.get('memory_retries', 0)} retries, {reads:g} host reads a step; loss {last['loss']:.4f}"
    return line


def main():
    if len(sys.argv) not in (5, 6):
        sys.exit(__doc__.strip())
    name, ranks, steps, console = sys.argv[1:5]
    with open(console, encoding="utf-8", errors="replace") as file:
        text = file.read()
    print(report(name, int(ranks), steps_of(steps), text, sys.argv[5] if len(sys.argv) > 5 else ""))


if __name__ == "__main__":
    main()
