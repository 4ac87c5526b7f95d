"""Plans the cases of a folder, in a separate process, which frees TensorFlow's memory when it exits.

python -m ops.bench.regret.plans FOLDER CLUSTER.json MOST NUMBER RATE [RATE...]
python -m ops.bench.regret.plans --sides FOLDER MODEL,RATE,RATE [MODEL,RATE,RATE...]
"""

from __future__ import annotations

import sys
from pathlib import Path

from ops.bench.regret.cases import models, side_file
from parallax.analysis.reading.construction import record
from parallax.cluster.profiles import ClusterProfile, cluster_profile_from_json


def main() -> None:
    """Plans the cases at the cluster's link rate, and writes their files."""
    record.install()
    if sys.argv[1] == "--sides":
        _write_sides(*sys.argv[2:])
        return
    from ops.bench.regret.choices import case_of

    folder, cluster_file, most, number, rate, *rates = sys.argv[1:]
    cluster = _cluster(cluster_file)
    for model in models(int(number), tuple(map(int, rates))):
        file = Path(folder) / f"case-{model.number}.json"
        if model.rate_bytes_per_s == int(rate) and not file.exists():
            file.write_text(case_of(model, cluster, Path(folder), int(most)).to_json(), encoding="utf-8")


def _write_sides(folder: str, *points: str) -> None:
    """Writes the two cases of each flip point."""
    from ops.bench.regret.choices import sides_of

    for point in points:
        number, *rates = map(int, point.split(","))
        clusters = [_cluster(str(side_file(Path(folder), number, rate, "cluster"))) for rate in rates]
        for case in sides_of(models(number + 1, rates)[-1], rates, clusters, Path(folder)):
            file = side_file(Path(folder), number, case.model.rate_bytes_per_s, "case")
            file.write_text(case.to_json(), encoding="utf-8")


def _cluster(file: str) -> ClusterProfile:
    return cluster_profile_from_json(Path(file).read_text(encoding="utf-8"), file)


if __name__ == "__main__":
    main()
