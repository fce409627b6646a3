"""From samples to medians, and from medians to Markdown tables.

Neighbours: `llama_cpp.py` measures. Every ratio printed is a speed, Foretoken's over the peer's, so that above 1 always
means that Foretoken is faster, for times and for tokens per second alike.
"""

import statistics
from typing import Any

ROWS = (1, 2, 4, 8, 16, 32)
PREFILL = 512
# Keys of a result's cells: the rows of a pass, and the prompt.
CELLS = (*map(str, ROWS), "prefill")
# Milliseconds of each cell by the peer's setting, of a round and of all.
Sample = dict[str, dict[str, float]]
Samples = dict[str, dict[str, list[float]]]


def no_sample() -> Sample:
    """Every cell, nothing measured."""
    return {cell: {} for cell in CELLS}


def summarise(theirs: Samples, ours: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each cell's medians over the rounds; of the peer's settings the fastest."""
    cells = {}
    for cell in CELLS:
        medians = {setting: statistics.median(times) for setting, times in theirs[cell].items()}
        best = min(medians, key=lambda setting: medians[setting])
        own = statistics.median(foretoken_ms(report, cell) for report in ours)
        cells[cell] = {
            "llama_cpp_ms": medians[best],
            "foretoken_ms": own,
            "speed": medians[best] / own,
            "setting": best,
            "settings_ms": medians,
        }
    return cells


def foretoken_ms(report: dict[str, Any], cell: str) -> float:
    """A cell of `foretoken bench --json`."""
    return 1e3 * PREFILL / report["prefill_tok_s"] if cell == "prefill" else report["verify_ms"][cell]


def table(result: dict[str, Any]) -> str:
    """The table of one file."""
    cells, one = result["cells"], result["cells"]["1"]
    rates = ", ".join(f"{report['read_bandwidth_gb_s']:.1f}" for report in result["foretoken"])
    lines = [
        f"### {result['shape']}, {result['format']}",
        "",
        f"{result['file_bytes'] / 1e6:.1f} MB. By round: reading memory {rates} GB/s; {others(result)}.",
        "",
        "|          | llama.cpp | t(n)/t(1) | Foretoken | t(n)/t(1) |   speed | llama.cpp's best setting |",
        "|----------|----------:|----------:|----------:|----------:|--------:|--------------------------|",
    ]
    for rows in ROWS:
        cell = cells[str(rows)]
        theirs, ours = cell["llama_cpp_ms"], cell["foretoken_ms"]
        growth = (theirs / one["llama_cpp_ms"], ours / one["foretoken_ms"])
        lines.append(
            f"| {f't({rows}) ms':<8} | {theirs:9.3f} | {growth[0]:9.2f} | {ours:9.3f} | {growth[1]:9.2f} "
            f"| {cell['speed']:6.2f}x | {cell['setting']:<24} |"
        )
    for name, key, tokens in (("decode", "1", 1), ("prefill", "prefill", PREFILL)):
        cell = cells[key]
        theirs, ours = (1e3 * tokens / cell[of] for of in ("llama_cpp_ms", "foretoken_ms"))
        lines.append(
            f"| {name:<8} | {theirs:5.0f} t/s |           | {ours:5.0f} t/s |           "
            f"| {cell['speed']:6.2f}x | {cell['setting']:<24} |"
        )
    return "\n".join([*lines, ""])


def others(result: dict[str, Any]) -> str:
    """What other processes took of the processor, for the table's first line."""
    text = f"other processes took {', '.join(f'{100 * share:.0f} %' for share in result['others'])} of the processor"
    return f"{text}: too much to trust these times" if max(result["others"]) > 0.1 else text


def overview(results: list[dict[str, Any]]) -> str:
    """The speeds of all files."""
    names = [f"t({rows})" for rows in ROWS] + ["prefill"]
    lines = [
        "### Foretoken's speed over llama.cpp's (above 1: Foretoken is faster)",
        "",
        "| shape | format | " + " | ".join(f"{name:>7}" for name in names) + " |",
        "|-------|--------|" + "|".join(["--------:"] * len(names)) + "|",
    ]
    for result in results:
        speeds = " | ".join(f"{result['cells'][cell]['speed']:6.2f}x" for cell in CELLS)
        lines.append(f"| {result['shape']:<5} | {result['format']:<6} | {speeds} |")
    return "\n".join(lines)
