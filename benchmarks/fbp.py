"""Filtered back projection beside other packages: ``python -m benchmarks.fbp``.

Same exact line integrals for all, same number of threads, one run; the error is the RMS difference to the
phantom inside the circle (skull 1, brain 0.2).
"""

from benchmarks import environment
from benchmarks.measure import Row, measure_all, number, options, quicken, table, write_json
from benchmarks.peers import OTHERS, DtomoBackprojection, DtomoNufft, Peer

OWN: dict[str, type[Peer]] = {"dtomo back projection": DtomoBackprojection, "dtomo NUFFT": DtomoNufft}


def ratios(rows: list[Row]) -> str:
    """One line for each size and method, with the ratio to the faster method of dtomo."""
    lines = []
    for size, asked in dict.fromkeys((row["size"], row["asked"]) for row in rows):
        here = [row for row in rows if (row["size"], row["asked"]) == (size, asked)]
        best = min(row["minimum"] for row in here if row["peer"] in OWN)
        for row in here:
            time = f"{number(row['minimum'])} ({number(row['median'])})"
            ratio = f"{number(row['minimum'] / best)}×"
            lines.append(
                [
                    str(size),
                    str(row["angles"]),
                    row["peer"],
                    str(row["slices"]),
                    time,
                    ratio,
                    f"{row['error']:.4f}",
                ]
            )
    head = [
        "N",
        "angles",
        "method",
        "slices",
        "ms per slice, minimum (median)",
        "of dtomo's faster",
        "RMS error",
    ]
    return table(head, lines)


def main() -> None:
    """Measure and print."""
    able = [name for name, kind in OTHERS.items() if hasattr(kind, "fbp")]
    parser = options(__doc__.splitlines()[0], [256, 512, 1024], [64], able)
    chosen = quicken(parser.parse_args())
    environment.restart_clean(chosen.cores)
    others = {name: OTHERS[name] for name in chosen.peers}
    packages = ["numba", "numpy", "finufft", *(kind.package for kind in others.values())]
    print(
        f"{environment.processor()}, {environment.cores()} threads, {environment.versions(packages)}",
        flush=True,
    )
    rows: list[Row] = []
    for size in chosen.sizes:
        for number_of_slices in chosen.slices:
            rows += measure_all(OWN, size, number_of_slices, ("fbp",), chosen.repeats, chosen.limit)
        rows += measure_all(others, size, max(chosen.slices), ("fbp",), chosen.repeats, chosen.limit)
    print("\n" + ratios(rows))
    write_json(chosen.json, packages, rows=rows)


if __name__ == "__main__":
    main()
