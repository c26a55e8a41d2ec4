#!/usr/bin/env bash
# Real caches on one GPU in a few minutes, appended to a results file; run from the repository's root with
# `pip install '.[probe,gpu]'`. DEVICE=cpu MODELS="Qwen/Qwen2.5-0.5B" proves the script where there is no GPU.
set -euo pipefail

device=${DEVICE:-cuda}
models=${MODELS:-Qwen/Qwen2.5-0.5B google/gemma-3-1b-it meta-llama/Llama-3.1-8B mistralai/Mistral-7B-v0.1
  google/gemma-3-27b-it openai/gpt-oss-20b deepseek-ai/DeepSeek-V2-Lite state-spaces/mamba-130m-hf
  Qwen/Qwen3-Next-80B-A3B-Instruct openai/whisper-tiny google-t5/t5-small}
results=${RESULTS:-validate/results/$device.jsonl}

code=0
for arguments in "--generate --ctx 64,1025" "--cache offloaded,offloaded_static --ctx 1025" "--num-beams 3 --ctx 300" \
  "--cache paged --generate --batch 3 --ctx 1025"; do
  [[ $device != cuda && $arguments == *offloaded* ]] && continue
  # shellcheck disable=SC2086 # lists of words
  kvsize validate $models --device "$device" --offline --results "$results" $arguments || code=$?
done
python validate/make_results.py
exit "$code"
