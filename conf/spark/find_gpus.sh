#!/usr/bin/env bash
# Spark's discovery script: the addresses of this host's GPUs, as indices into those that processes here see.
set -euo pipefail
if [[ -n ${CUDA_VISIBLE_DEVICES:-} ]]; then
    IFS=, read -ra visible <<< "$CUDA_VISIBLE_DEVICES"
    addresses=("${!visible[@]}")
else
    mapfile -t addresses < <(nvidia-smi --query-gpu=index --format=csv,noheader)
fi
quoted=$( ((${#addresses[@]} == 0)) || printf '"%s",' "${addresses[@]}")
echo "{\"name\": \"gpu\", \"addresses\": [${quoted%,}]}"
