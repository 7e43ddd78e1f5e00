#!/bin/bash
# One task of an elastic job in a Slurm allocation: starts its worker again when it fails, up to 10 times.
#   TFDIST_ELASTIC=1:4:2 srun --ntasks=4 --kill-on-bad-exit=0 keras_examples/clusters/elastic_task.sh train.py
for _ in {0..10}; do
  python "$@"
  code=$?
  # 0: trained; 143: it has left after a preemption notice.
  if [ "$code" -eq 0 ] || [ "$code" -eq 143 ]; then
    exit "$code"
  fi
  echo "worker $SLURM_PROCID failed with exit code $code: starting it again" >&2
  sleep 1
done
exit "$code"
