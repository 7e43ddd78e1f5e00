"""Shows when each bucket of gradients travels in one training step of `fit`.

    python benchmarks/overlap.py [--model dense] [--bytes_per_pack 4194304] [--json FILE]

Two workers train under `tfdist.MultiWorkerMirroredStrategy`. For every collective two ops of
the same graph record the time: when the bucket's last gradient exists, and when its sum exists. The
last gradient of the last bucket ends back-propagation: earlier transfers took no extra time.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from absl import app, flags
from baselines.processes import Remote, call
from baselines.training import MODELS, TITLES, WORKERS, TrainingRank, tf_configs
from reporting import charts, results

MODEL = flags.DEFINE_enum("model", "dense", MODELS, "model to train")
BYTES = flags.DEFINE_integer("bytes_per_pack", 0, "size of a bucket; 0: the default")
STEPS = flags.DEFINE_integer("steps", 9, "steps; the one of median length is shown")
JSON = flags.DEFINE_string("json", None, "file to write the figures to; a chart beside it")

MIN_BYTES = 64  # of a gradient; less is the loss
MAX_BUCKETS = 500
COLUMNS = 60  # of the drawing


class TimedRank(TrainingRank):
    """A worker that records when its buckets travel.

    Args:
      tf_config: the job.
    """

    def __init__(self, tf_config: str) -> None:
        super().__init__(tf_config)
        self._bytes: list[int] = []  # of each bucket
        self._time_buckets()

    def _time_buckets(self) -> None:
        import tensorflow as tf

        from tfdist.ops.collectives import fused

        original = fused.all_reduce
        self._times = tf.Variable(tf.zeros([MAX_BUCKETS, 2], tf.float64))

        def when_all_exist(tensors):
            with tf.control_dependencies(tensors):
                time = tf.timestamp()
            # Outside the order of the ops with side effects, which would change the timing.
            time.graph.experimental_acd_manager.run_independently(time.op)
            return time

        def all_reduce(tensors, *arguments, **options):
            size = sum(t.shape.num_elements() * t.dtype.size for t in tensors)
            if tf.executing_eagerly() or size < MIN_BYTES:
                return original(tensors, *arguments, **options)
            index = len(self._bytes)
            self._bytes.append(size)
            ready = when_all_exist(tensors)
            with tf.control_dependencies([ready]):  # or it may be recorded too late
                tensors = [tf.identity(tensor) for tensor in tensors]
            reduced = original(tensors, *arguments, **options)
            self._times.scatter_nd_update([[index]], [[ready, when_all_exist(reduced)]])
            return reduced

        fused.all_reduce = all_reduce

    def trace(self, kind: str, bytes_per_pack: int, steps: int) -> list[list[dict]]:
        """Returns the buckets of each of `steps` steps, in the order of their completion."""
        model = self._models[kind, bytes_per_pack]
        traces = []
        for _ in range(steps + 1):
            model.fit(self._batches(kind, 1), verbose=0)
            times = self._times.numpy()
            traces.append(
                [
                    {"bytes": size, "ready": float(ready), "reduced": float(reduced)}
                    for (ready, reduced), size in zip(times, self._bytes, strict=False)
                    if ready > 0  # buckets of the function that ran, not of an earlier trace
                ]
            )
        return traces[1:]


def trace() -> list[dict]:
    """The buckets of the step of median length on rank 0, timed from the first one's start."""
    with contextlib.ExitStack() as stack:
        ranks = []
        for config in tf_configs():
            ranks.append(Remote(TimedRank, config))
            stack.callback(ranks[-1].stop)
        call(ranks, "add", MODEL.value, BYTES.value)
        traces, *_ = call(ranks, "trace", MODEL.value, BYTES.value, STEPS.value)
    steps = [sorted(step, key=lambda bucket: bucket["ready"]) for step in traces]
    steps.sort(key=lambda step: max(b["reduced"] for b in step) - step[0]["ready"])
    step = steps[len(steps) // 2]
    start = step[0]["ready"]
    return [{**b, "ready": b["ready"] - start, "reduced": b["reduced"] - start} for b in step]


def hidden(buckets: list[dict], backward: float) -> float:
    """Seconds of back-propagation during which at least one bucket travelled."""
    total, last = 0.0, 0.0
    for bucket in buckets:
        begin, finish = max(last, bucket["ready"]), min(bucket["reduced"], backward)
        total, last = total + max(0.0, finish - begin), max(last, finish)
    return total


def show(buckets: list[dict], backward: float, end: float) -> None:
    print(f"\none step of the {TITLES[MODEL.value]}, rank 0 of {WORKERS}, milliseconds")
    print(f"{'bucket':>6} {'MB':>6} {'complete':>9} {'reduced':>8}   | back-propagation ends")
    mark = round(backward / end * COLUMNS)
    for number, bucket in enumerate(buckets, 1):
        first, past = (round(bucket[key] / end * COLUMNS) for key in ("ready", "reduced"))
        line = [" "] * (COLUMNS + 1)
        line[first : past + 1] = ["="] * (past + 1 - first)
        line[mark] = "|"
        print(
            f"{number:6d} {bucket['bytes'] / 1e6:6.2f} {bucket['ready'] * 1e3:9.1f} "
            f"{bucket['reduced'] * 1e3:8.1f}   {''.join(line)}"
        )
    print(
        f"communication: {hidden(buckets, backward) * 1e3:.1f} ms beside back-propagation, "
        f"{(end - backward) * 1e3:.1f} ms after it"
    )


def draw(file: Path, buckets: list[dict], backward: float) -> None:
    spans = {
        f"{number}: {bucket['bytes'] / 1e6:.2f} MB": (
            1e3 * bucket["ready"],
            1e3 * bucket["reduced"],
        )
        for number, bucket in enumerate(buckets, 1)
    }
    title = f"When each bucket travelled, one step of the {TITLES[MODEL.value]}"
    mark = (1e3 * backward, "back-propagation ends")
    charts.spans(file, title, "milliseconds since the first was complete", spans, mark)


def main(argv: list[str]) -> None:
    del argv
    buckets = trace()
    backward = max(bucket["ready"] for bucket in buckets)
    end = max(bucket["reduced"] for bucket in buckets)
    show(buckets, backward, end)
    figures = {"model": MODEL.value, "backward": backward, "end": end, "buckets": buckets}
    figures["hidden"] = hidden(buckets, backward)
    results.save(JSON.value, figures, lambda file: draw(file, buckets, backward))


if __name__ == "__main__":
    app.run(main)
