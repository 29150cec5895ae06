#!/usr/bin/env bash
# Runs what needs a GPU, and the CPU tests again with that machine's Python and torch.
#   scripts/gpu_check.sh MODEL.gguf OUT
# MODEL.gguf is the default model's file, where its package is not installed.
set -uo pipefail
model=$1 out=$2
export TUI_INFER_CACHE_DIR=${TUI_INFER_CACHE_DIR:-/tmp/tui-infer-cache} PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
python3 -c "import sys, torch, transformers; print(sys.version.split()[0], torch.__version__, transformers.__version__)"
python3 -m tui_infer doctor 2>&1 | head -40
time python3 -m tui_infer run --model "$model" --temperature 0 --max-tokens 24 --json \
  --prompt "What is the capital of France? Answer in one sentence." | tee "$out/capital.json"
python3 -m pytest -m gpu tests/gpu 2>&1 | tail -15
python3 -m pytest -m "not gpu" -n 12 --dist loadscope --durations 12 \
  --deselect tests/test_wheel.py --ignore tests/test_wheel.py 2>&1 | tee "$out/pytest.log" | tail -60
