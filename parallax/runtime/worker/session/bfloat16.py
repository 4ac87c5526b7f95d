"""Computes in bfloat16 where TensorFlow supports it on a CPU: enables it in a session and reports its effect.

TensorFlow's graph rewrite puts casts around matrix products and convolutions, and around adjacent ops that only move
data. The rewrite comes after the transform, on TensorFlow's servers too. It knows no op of Horovod or of Parallax, no
variable and no update, so these stay unchanged. If it does nothing it reports nothing: so the first training step is
inspected as it ran.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf
from tensorflow.core.protobuf import rewriter_config_pb2

from parallax.base.types import ConfigProto, GraphDef, RunArgs, RunContext, RunValues
from parallax.report.logger import log
from parallax.runtime.worker.ranks import ProcessGroup
from parallax.runtime.worker.session.run_context import TrainingRuns
from parallax.settings.environment import onednn_is_off, set_defaults

v1 = tf.compat.v1

INSTRUCTIONS = ("avx512_bf16", "amx_bf16", "avx_ne_convert")
"""The CPU flags for bfloat16, any of which suffices, as Linux names them in /proc/cpuinfo."""

_LEVEL = {"TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LEVEL": "TREAT_INFER_AS_DENY"}
"""Excludes ops that compute without being products from TensorFlow's rewrite: sums, biases, activations, batch norm.

In bfloat16 they are slower on CPUs, and unsafe: sampled softmax masks accidental hits with the lowest float32 number,
which bfloat16 rounds to minus infinity, and the loss becomes NaN.
"""

_PRODUCT = re.compile("MatMul|Conv[23]D|Conv2d|Einsum")
"""Substrings of the names of matrix products and convolutions, and of the ops that oneDNN and fusions make of them."""

_CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Products:
    """The matrix products and convolutions of a step.

    Attributes:
        rounded: how many are computed in bfloat16.
        whole: how many in float32.
        on_gpu: how many of these on a GPU.
    """

    rounded: int
    whole: int
    on_gpu: int = 0


def options_with(options: ConfigProto, compute_dtype: str | None) -> ConfigProto:
    """Returns a session's options that additionally request products in `compute_dtype`; other options are unchanged.

    TensorFlow reads from this process's environment which other ops are rounded: this is set too, unless already set.

    Args:
        options: a ConfigProto.
        compute_dtype: `bfloat16`, or None for unchanged products.
    """
    config = v1.ConfigProto()
    config.CopyFrom(options)
    if compute_dtype is not None:
        set_defaults(_LEVEL)
        rewrites = config.graph_options.rewrite_options
        rewrites.auto_mixed_precision_onednn_bfloat16 = rewriter_config_pb2.RewriterConfig.ON
    return config


def products_of(graphs: Iterable[GraphDef]) -> Products:
    """Counts in GraphDefs that TensorFlow has rewritten, one for each device."""
    products = [node for graph in graphs for node in graph.node if _PRODUCT.search(node.op) and "T" in node.attr]
    whole = [node for node in products if node.attr["T"].type == tf.float32.as_datatype_enum]
    rounded = sum(node.attr["T"].type == tf.bfloat16.as_datatype_enum for node in products)
    return Products(rounded, len(whole), sum("GPU" in node.device for node in whole))


def has_instructions(cpu_info: Path = _CPU_INFO) -> bool:
    """Whether this machine's processor has instructions for bfloat16; True if Linux does not report it."""
    match = (
        re.search(r"^flags\s*:(.*)$", cpu_info.read_text(encoding="utf-8"), re.MULTILINE)
        if cpu_info.is_file()
        else None
    )
    return match is None or not set(INSTRUCTIONS).isdisjoint(match[1].split())


def effect(products: Products, instructions: bool, turned_off: bool) -> tuple[int, str]:
    """The effect of `compute_dtype` on a step, to be logged: the level and a sentence.

    Args:
        products: of the step.
        instructions: whether the processor has them.
        turned_off: whether the environment turns oneDNN off.
    """
    every = products.rounded + products.whole
    done = f"{products.rounded} of {every} matrix products and convolutions of a step are computed in bfloat16"
    lacking = f"this processor has none of {', '.join(INSTRUCTIONS)}"
    if products.rounded and instructions:
        return logging.INFO, f"compute_dtype: {done}."
    if products.rounded:
        return logging.WARNING, (
            f"compute_dtype: {done}, but {lacking}, and without one that takes longer than float32. Run on hosts that "
            "have one, or leave compute_dtype out."
        )
    if not every:
        why = "a step of this graph has no matrix product and no convolution of float32. Leave it out."
    elif turned_off:
        why = (
            "TensorFlow does it by oneDNN, which TF_ENABLE_ONEDNN_OPTS=0 turns off. Take that out of the workers' "
            "environment, or leave compute_dtype out."
        )
    elif products.on_gpu == products.whole:
        why = "TensorFlow does it on CPUs only, and the products are on a GPU. Leave compute_dtype out."
    elif not instructions:
        why = f"{lacking}. Run on hosts that have one, or leave compute_dtype out."
    else:
        why = (
            "TensorFlow's graph rewrite changed none of them. Do not turn it off in sess_config "
            "(disable_meta_optimizer, optimizers, min_graph_nodes of its rewrite_options), or leave compute_dtype "
            "out."
        )
    in_float32 = f" all {products.whole} products of a step stay float32:" if every else ""
    return logging.WARNING, f"compute_dtype has no effect here:{in_float32} {why}"


class EffectHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Inspects this worker's first training step and logs the effect of `compute_dtype`.

    Worker 0 always logs it, the first worker of another host only a problem there. All workers inspect the same step,
    because they must switch to direct runs together: TensorFlow computes constants when it prepares a direct run, and
    if such a constant needs an exchange it waits for the other workers.

    Attributes:
        finished: whether that is done, and runs need no more inspection.

    Args:
        training: identifies the runs that are steps.
        members: the job.
    """

    def __init__(self, training: TrainingRuns, members: ProcessGroup) -> None:
        hosts, rank = members.parcel.hosts, members.rank
        is_first = hosts.index(hosts[rank]) == rank
        self._least = logging.INFO if rank == 0 else logging.WARNING if is_first else logging.CRITICAL
        self._training = training
        self._looks = False
        self.finished = False

    def before_run(self, run_context: RunContext) -> RunArgs:
        """Requests the executed graph of a training run."""
        self._looks = not self.finished and self._training.step is not None
        return (
            v1.train.SessionRunArgs(None, options=v1.RunOptions(output_partition_graphs=True)) if self._looks else None
        )

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Logs its products."""
        if not self._looks:
            return
        self.finished = True
        products = products_of(run_values.run_metadata.partition_graphs)
        level, text = effect(products, has_instructions(), onednn_is_off())
        if level >= self._least:
            log.log(level, text)
