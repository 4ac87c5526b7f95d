"""Emulated clusters: the rates of their links, and the pace of one accelerator for each network.

Each pace has its source. The paper is Kim et al., "Parallax: Sparsity-aware Data Parallel Training of Deep Neural
Networks", EuroSys 2019.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

GBIT = 1e9 / 8


@dataclass(frozen=True, slots=True)
class Pace:
    """The training speed of one accelerator for a network, without any exchange.

    Attributes:
        units_per_s: throughput in the network's unit.
        batch: examples per step.
        source: source of the figure; begins with `estimated` if it was not measured.
    """

    units_per_s: float
    batch: int
    source: str

    def step_s(self, units_of_example: int) -> float:
        """Returns the seconds of a step."""
        return self.batch * units_of_example / self.units_per_s


@dataclass(frozen=True, slots=True)
class Cluster:
    """Hosts of one accelerator each.

    Attributes:
        hosts: default number of hosts.
        rate_bytes_per_s: rate of each host's link, each way.
        accelerator: name of the accelerator.
        paces: paces by network.
    """

    hosts: int
    rate_bytes_per_s: float
    accelerator: str
    paces: Mapping[str, Pace]


_PAPER = "throughput of Parallax on 48 devices over its speed-up from one device to 48, both from the paper"
_TITAN_XP = {
    # 274,000 and 204,000 words/s, 7,600 and 5,900 images/s; speed-ups of 9.4, 18.4, 39.8 and 43.6. The speed-ups are
    # quoted from memory of the paper, and uncertain.
    "lm": Pace(274_000 / 9.4, 128, _PAPER),
    "nmt": Pace(204_000 / 18.4, 128, _PAPER),
    "resnet50": Pace(7_600 / 39.8, 64, _PAPER),
    "inception_v3": Pace(5_900 / 43.6, 64, _PAPER),
}

_NVIDIA = "NVIDIA DeepLearningExamples, TensorFlow"
_RESNET50_A100, _RESNET50_V100, _GNMT_V100 = 909, 412, 14_106
_A100 = {
    # 909 images/s: A100 40 GB, TF32 and XLA, batches of 256, TensorFlow 1 of June 2020.
    "resnet50": Pace(_RESNET50_A100, 256, f"{_NVIDIA}/Classification/ConvNets/resnet50v1.5/README.md"),
    "inception_v3": Pace(
        _RESNET50_A100 * 3.86 / 5.71,
        256,
        "estimated: ResNet-50's pace, scaled by multiply-adds per image, 3.86e9 over 5.71e9",
    ),
    # 14,106 words/s: V100, float32, batches of 128; 412 images/s: V100, float32 and XLA.
    "nmt": Pace(
        _GNMT_V100 * _RESNET50_A100 / _RESNET50_V100,
        128,
        f"estimated: GNMT on a V100 ({_NVIDIA}/Translation/GNMT/README.md), scaled by ResNet-50's speed-up on an A100",
    ),
    "wide": Pace(
        156e12 / 2 / (6 * 8 * 4096**2),
        32,
        "estimated: half the TF32 peak of an A100, 6 operations a parameter and example",
    ),
    "lm": Pace(
        _TITAN_XP["lm"].units_per_s * _RESNET50_A100 / _TITAN_XP["resnet50"].units_per_s,
        128,
        "estimated: the TITAN Xp's pace, scaled by ResNet-50's speed-up on an A100",
    ),
}

CLUSTERS = {
    # The paper's hosts had six of these accelerators, and 36 cores; here a host has one.
    "2019": Cluster(8, 100 * GBIT, "TITAN Xp", _TITAN_XP),
    "today-25gbit": Cluster(8, 25 * GBIT, "A100 40 GB, TF32", _A100),
    "today-10gbit": Cluster(8, 10 * GBIT, "A100 40 GB, TF32", _A100),
}
"""By name, as `--accelerators` accepts it."""

SLOWER = 1024
"""Default factor by which links are slowed in the twin: two cores can then fill the links of eight hosts.

It is the product of the dilation of time (DILATION) and the divisor of bytes."""

DILATION = {"wide": 16, "lm": 64, "nmt": 16, "resnet50": 16, "inception_v3": 16}
"""Default dilation of time, by network; SLOWER over it divides the bytes.

The language model has short steps and the largest tables. A step of the other networks takes seconds in the twin even
so. For the work per message, a host counts as one with that many times its cores here (docs/benchmarks.md).
"""
