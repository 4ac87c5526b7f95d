"""Plans the cases of a folder, in a process of its own, as TensorFlow stays in the memory of the one that has it.

python -m ops.bench.regret.plans FOLDER CLUSTER.json MOST NUMBER RATE [RATE...]
python -m ops.bench.regret.plans --sides FOLDER MODEL SLOW FAST SLOW.json FAST.json
"""

from __future__ import annotations

import sys
from pathlib import Path

from ops.bench.regret.cases import models
from parallax.analysis import record
from parallax.profiles import ClusterProfile, cluster_profile_from_json


def main() -> None:
    """Writes the file of each case on links of the cluster's rate."""
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


def _write_sides(folder: str, number: str, *more: str) -> None:
    """Writes the two cases of a flip point."""
    from ops.bench.regret.choices import sides_of

    rates, clusters = tuple(map(int, more[:2])), tuple(map(_cluster, more[2:]))
    model = models(int(number) + 1, rates)[-1]
    for case in sides_of(model, rates, clusters, Path(folder)):
        file = Path(folder) / f"flip-{case.model.rate_bytes_per_s}.json"
        file.write_text(case.to_json(), encoding="utf-8")


def _cluster(file: str) -> ClusterProfile:
    return cluster_profile_from_json(Path(file).read_text(encoding="utf-8"), file)


if __name__ == "__main__":
    main()
