#!/usr/bin/env bash
# Everything that needs a GPU: the tests marked gpu, in under five minutes, with their figures as JSON in OUT.
#   scripts/gpu_check.sh MODEL.gguf OUT
# MODEL.gguf is the default model's file, where its package is not installed.
set -uo pipefail
model=$1 out=$2
export TUI_INFER_CACHE_DIR=${TUI_INFER_CACHE_DIR:-/tmp/tui-infer-cache} PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
export TUI_INFER_RESULTS=$out OMP_NUM_THREADS=4
python3 -c "import sys, torch, transformers; print(sys.version.split()[0], torch.__version__, transformers.__version__)"
python3 -m engine.models "$model" >/dev/null  # converted once, before the workers ask for it together
time python3 -m pytest -m gpu tests/gpu --ignore tests/gpu/test_sharing.py -n 4 --dist loadgroup --durations 15 \
  2>&1 | tee "$out/pytest-gpu.log" | tail -${TAIL:-60}
python3 -m pytest -m gpu tests/gpu/test_sharing.py 2>&1 | tee "$out/pytest-sharing.log" | tail -15
