"""Notices that a script's Python code reads the length of an open axis, which is None, while a step is traced.

TensorFlow's own trace of a step has numbers there. Installed packages read shapes too, and handle None.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.impl import api

_READS = ("__getitem__", "__iter__", "as_list", "dims", "is_fully_defined", "num_elements")
_REPORTS = ("_ConstantValue", "constant_value", "int_shape")
"""Functions of packages that only return lengths to their caller: tf.get_static_value, tf_keras.backend.int_shape."""
_AUTOGRAPH = str(Path(api.__file__).parent)
_PROJECT = str(Path(__file__).parents[2])
_FOLDERS = (_PROJECT, *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
_PACKAGES = tuple(f"{folder}{os.sep}" for folder in _FOLDERS)


@contextmanager
def record_open_reads() -> Iterator[list[str]]:
    """A context that lists the files of the script that read open lengths of tensors, by static shape."""
    files: list[str] = []
    originals = {name: tf.TensorShape.__dict__[name] for name in _READS}

    def watch(original: Callable[..., Any]) -> Callable[..., Any]:
        def read(self: tf.TensorShape, *args: Any) -> Any:
            value = original(self, *args)
            if _is_open(self, value, args) and (file := _find_script(sys._getframe(1))):
                files.append(file)
            return value

        return read

    for name, original in originals.items():
        is_property = isinstance(original, property)
        setattr(tf.TensorShape, name, property(watch(original.fget)) if is_property else watch(original))
    try:
        yield files
    finally:
        for name, original in originals.items():
            setattr(tf.TensorShape, name, original)


def _is_open(shape: tf.TensorShape, value: Any, args: tuple[Any, ...]) -> bool:
    """Whether a read of a shape of known rank depends on an open length; a slice of it is a shape again."""
    if args:
        return value is None and shape.rank is not None
    return shape.rank is not None and None in shape._dims


def _find_script(frame: FrameType) -> str:
    """The file of a frame's code, which AutoGraph may have converted and call; empty for installed packages."""
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(_AUTOGRAPH)
        or (frame.f_code.co_name in _REPORTS and frame.f_code.co_filename.startswith(_PACKAGES))
    ):
        frame = frame.f_back
    file = str(frame.f_globals.get("__file__") or frame.f_code.co_filename)
    return "" if file.startswith(_PACKAGES) else file
