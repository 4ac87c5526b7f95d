#!/usr/bin/env bash
# Renews the two lock files from pyproject.toml. Needs uv (a PyPI package) on PATH; run it from the project's root.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# tf_keras asks for the package tensorflow; tensorflow-cpu is the same module.
compile() {
  uv pip compile "$here/../../pyproject.toml" --universal --python-version 3.10 --generate-hashes \
    --extra cpu --extra horovod --extra build --extra bench --extra examples --extra dev --no-header --no-annotate --no-emit-index-url --no-emit-find-links --no-emit-package tensorflow "$@"
}
compile --no-emit-package horovod --emit-build-options --output-file "$here/requirements.lock" --quiet
# Horovod is compiled against the environment that the first file makes, so it has a file of its own.
compile --quiet | awk '/^horovod==/ {keep = 1} keep {print} !/\\$/ {keep = 0}' > "$here/horovod.lock"
