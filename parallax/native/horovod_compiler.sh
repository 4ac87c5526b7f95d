#!/bin/sh
# Compiler launcher for Horovod's build (CMAKE_CXX_COMPILER_LAUNCHER): runs the compiler command it is given.
#
# Horovod 0.28.1 does not compile its XLA ops against TensorFlow 2.16 and later, whose headers moved. The whole body of
# that one file is guarded by TENSORFLOW_VERSION, so it alone is compiled with an older version
# number and becomes empty. Parallax uses none of those ops.
case "$*" in
  *xla_mpi_ops.cc*) exec "$@" -UTENSORFLOW_VERSION -DTENSORFLOW_VERSION=2005000000 ;;
  *) exec "$@" ;;
esac
